"""Validation of model fields: each error names the value, the place, valid values and a remedy.

All checks use static numbers, at construction of a model or during tracing.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.errors import shown
from vit_jax.models.attention.types import ATTENTION_KINDS, KINDS_WITHOUT_WEIGHTS
from vit_jax.models.fields import (
    WIDEST_HIDDEN,
    check_choice,
    check_count,
    check_positive,
    check_rate,
    check_size,
    check_types,
    pair,
)
from vit_jax.models.inputs import num_frames
from vit_jax.models.positions.types import POSITION_KINDS
from vit_jax.models.tokens.fields import check_reduction

__all__ = [  # of `fields`, for those who check models by this module
    "check_choice",
    "check_count",
    "check_positive",
    "check_rate",
    "check_size",
    "check_types",
    "pair",
]

if TYPE_CHECKING:
    from vit_jax.models.vit.module import ViT

# Positions inside attention, and the attention types that support them: a bias needs all logits, a
# rotation needs logits that are the product of a query and a key.
_KINDS_FOR_POSITIONS = {
    "relative": ("softmax", "talking_heads"),
    "rotary": ("softmax", "talking_heads", "local"),
}


# Limits far above any model, beyond which even checks take seconds or gigabytes.
MOST_TOKENS = 2**20
_MOST_TOKENS_IN_PAIRS = 2**13  # where a number is kept for every pair of them
_LARGEST_ORTHOGONAL = 2**10  # side of a matrix that is made orthogonal
_MOST_FEATURES = 2**22  # random numbers
_LARGEST_TABLE = 2**27  # numbers of positions that are computed rather than learned


def check_fields(model: "ViT") -> None:
    """Raise ValueError for fields of a ViT that are invalid or do not fit each other."""
    name = type(model).__name__
    check_types(model)
    if model.mlp_width is None:
        check_hidden(name, "mlp_ratio", model.mlp_ratio, model.width)
    check_patches_fit(name, pair(model.image_size), pair(model.patch_size))
    check_tokens(name, model.built_grid)

    check_heads(model)
    check_positions(model)
    if model.pool.startswith("cls") and not model.has_class_token:
        raise ValueError(
            f"{name}: pool={model.pool!r} reads the class token, but class_token=False; "
            "remove class_token, or use pool='mean' or 'map'."
        )
    if model.mlp == "swiglu" and model.activation != "gelu" and model.pool != "map":
        raise ValueError(
            f"{name}: activation={model.activation!r} has no place in mlp='swiglu', whose gate is "
            "SiLU; remove activation, or use mlp='plain'."
        )
    if model.distilled:
        check_distilled(model)
    if model.attention_type != "softmax":
        check_attention_type(model)
    check_reduction(model)


def check_positions(model: "ViT") -> None:
    """Raise ValueError for widths and grids that a position type does not support."""
    name, kind = type(model).__name__, POSITION_KINDS[model.positions]
    field, width = "width", model.width
    height, columns = model.built_grid
    if model.positions == "relative" and height * columns > _MOST_TOKENS_IN_PAIRS:
        raise ValueError(
            f"{name}: positions='relative' need a number for every pair of tokens, but a grid of "
            f"{height} x {columns} patches has more than {_MOST_TOKENS_IN_PAIRS:,} of them; use "
            "larger patches, smaller images, or positions 'rotary'."
        )
    if model.positions.startswith("sincos") and height * columns * width > _LARGEST_TABLE:
        raise ValueError(
            f"{name}: the table of positions={model.positions!r} would be {height} x {columns} x "
            f"{width} numbers, more than {_LARGEST_TABLE:,}; use larger patches, smaller images, "
            "or positions 'rotary'."
        )
    if model.pos_combine == "concat":
        if not kind.vectors:
            vectors = ", ".join(repr(other) for other, k in POSITION_KINDS.items() if k.vectors)
            raise ValueError(
                f"{name}: pos_combine='concat' needs vectors to concatenate to patches, but "
                f"positions={model.positions!r} are none; remove pos_combine, or use positions "
                f"{vectors}."
            )
        field, width = "pos_width", model.pos_channels
        check_count(name, field, width)
        if width >= model.width:
            raise ValueError(
                f"{name}: pos_width={width} leaves nothing of the width {model.width} for the "
                f"patches; use at most {model.width - 1}."
            )
    elif model.pos_width is not None:
        raise ValueError(
            f"{name}: pos_width={model.pos_width!r} is for pos_combine='concat'; added positions "
            "are as wide as tokens: remove pos_width."
        )
    parts = f"the {kind.parts} parts of {model.positions!r}"
    if kind.vectors:
        check_multiple(name, field, width, parts, kind.parts)
    if model.rotary != "none" and model.positions == "rotary":
        raise ValueError(
            f"{name}: positions='rotary' is rotary='axial' without vectors, and rotary="
            f"{model.rotary!r} another rotation; use positions='none' or 'learned' beside rotary."
        )
    if model.rotary == "vit5" and math.isqrt(model.registers) ** 2 != model.registers:
        raise ValueError(
            f"{name}: rotary='vit5' turns registers as a square grid, and registers="
            f"{model.registers} is no square; use 0, 1, 4 or 9 of them."
        )
    if is_rotary(model):
        for head_dim in head_dims(model):
            check_multiple(name, "head_dim", head_dim, "the 4 parts of rotary positions", 4)
    if model.positions == "sincos2d_big_vision" and width < 8:
        raise ValueError(
            f"{name}: positions 'sincos2d_big_vision' need a {field} of 8 or more, got {width}."
        )


def is_rotary(model: "ViT") -> bool:
    """Return whether queries and keys are rotated."""
    return model.positions == "rotary" or model.rotary != "none"


def head_dims(model: "ViT") -> set[int]:
    """Return the channels of a head, in all blocks."""
    heads = model.heads if isinstance(model.heads, tuple) else (model.heads,)
    return {model.head_dim or model.width // number for number in heads}


def check_heads(model: "ViT") -> None:
    """Raise ValueError for heads that do not divide the width, and lists of the wrong length."""
    name = type(model).__name__
    for field in ("heads", "mlp_width"):
        numbers = getattr(model, field)
        if not isinstance(numbers, tuple):
            continue
        if len(numbers) != model.depth:
            raise ValueError(
                f"{name}: {field} has {len(numbers)} numbers, one for each block, but depth="
                f"{model.depth}; use {model.depth} numbers, or one for all blocks."
            )
        if model.scan_layers and len(set(numbers)) > 1:
            raise ValueError(
                f"{name}: scan_layers=True needs equal blocks, but {field}={shown(numbers)}; use "
                "scan_layers=False, or one number for all blocks."
            )
    every = model.heads if isinstance(model.heads, tuple) else (model.heads,)
    for heads in every if model.head_dim is None else ():
        check_multiple(name, "width", model.width, "heads", heads)
    if model.pool == "map":
        heads = model.pool_heads or every[-1]
        check_multiple(name, "width", model.width, "heads of the pooling", heads)


def check_distilled(model: "ViT") -> None:
    """Raise ValueError for a model whose two heads would not each read a normed token."""
    needed = {"pool": "cls", "pool_norm": "before", "representation_size": None}
    for field, value in needed.items():
        if getattr(model, field) != value:
            raise ValueError(
                f"{type(model).__name__}: {field}={getattr(model, field)!r} does not go with "
                "distilled=True, where one head reads the class token and one the distillation "
                f"token; use {field}={value!r}, or distilled=False."
            )


def check_attention_type(model: "ViT") -> None:
    """Raise ValueError for fields that attention types other than softmax do not support."""
    name, kind = type(model).__name__, model.attention_type
    inside = "rotary" if is_rotary(model) else model.positions
    kinds = _KINDS_FOR_POSITIONS.get(inside, ATTENTION_KINDS)
    if kind not in kinds:
        raise ValueError(
            f"{name}: positions={inside!r} cannot enter attention_type={kind!r}; it is "
            f"one of {', '.join(map(repr, kinds))}, or positions are 'learned'."
        )
    if model.attention_impl not in ("auto", "xla"):
        raise ValueError(
            f"{name}: attention_impl={model.attention_impl!r} is for softmax attention"
            f" and not for attention_type={kind!r}; remove attention_impl."
        )
    if kind in KINDS_WITHOUT_WEIGHTS and model.attention_dropout:
        raise ValueError(
            f"{name}: attention_dropout={model.attention_dropout} drops weights, and "
            f"attention_type={kind!r} never has them; use attention_dropout=0.0, or use "
            "projection_dropout."
        )
    if kind == "performer":
        head_dim = max(head_dims(model))
        check_count(name, "head_dim of performer", head_dim, most=_LARGEST_ORTHOGONAL)
        check_count(
            name,
            "performer_features x head_dim",
            model.performer_features * head_dim,
            most=_MOST_FEATURES,
        )
    if kind == "local" and model.local_window % 2 == 0:
        window = model.local_window
        raise ValueError(
            f"{name}: local_window={window} must be odd, so that a window has a patch in its "
            f"middle; the nearest valid values are {window - 1} and {window + 1}."
        )
    height, width = model.built_grid
    tokens = model.prefix + height * width
    if kind == "linformer" and model.linformer_rank > tokens:
        raise ValueError(
            f"{name}: linformer_rank={model.linformer_rank} is more than the number of tokens; "
            f"use at most {tokens}."
        )


def check_images(model: Any, images: Float[Array, "batch *frames height width channels"]) -> None:
    """Raise ValueError for images, or clips, that a model cannot take, whatever their size."""
    name = type(model).__name__
    what, axes = "images", "(batch, height, width, channels)"
    if num_frames(model):
        what, axes = "clips", "(batch, frames, height, width, channels)"
    if images.ndim != axes.count(",") + 1:
        raise ValueError(
            f"{name}: {what} are {axes}, got the shape {tuple(images.shape)}; a single "
            f"{what[:-1]} needs a batch axis in front: images[None]."
        )
    if images.shape[-1] != model.in_channels:
        raise ValueError(
            f"{name}: the model takes {model.in_channels} channels in the last axis, got images of "
            f"shape {tuple(images.shape)}; convert the images, or build the model with "
            f"in_channels={images.shape[-1]}."
        )
    if not jnp.issubdtype(images.dtype, jnp.floating):
        raise ValueError(
            f"{name}: images are float32 and already normalised, got {images.dtype}; "
            "scale and normalise them first."
        )


def check_image_size(model: "ViT", given: tuple[int, int]) -> None:
    """Raise ValueError for images of a size (height, width) that a ViT cannot take."""
    name, built = type(model).__name__, pair(model.image_size)
    check_patches_fit(name, given, pair(model.patch_size))
    if model.attention_type == "linformer" and given != built:
        raise ValueError(
            f"{name}: attention_type='linformer' has a parameter for every token, so it takes the "
            f"size it was built for only, {built[0]} x {built[1]} pixels (height x width), got "
            f"{given[0]} x {given[1]}; resize the images, or build the model with image_size="
            f"{given} and train it."
        )


def check_hidden(where: str, field: str, ratio: float, width: int) -> None:
    """Raise ValueError for a ratio that makes no hidden layer of a width, or one beyond use."""
    check_positive(where, field, ratio)
    if not 1 <= ratio * width < WIDEST_HIDDEN + 1:
        raise ValueError(
            f"{where}: {field}={shown(ratio)} times the width {width} is {ratio * width:.3g} "
            f"hidden units, which must be at least 1 and at most {WIDEST_HIDDEN:,}."
        )


def check_tokens(where: str, grid: tuple[int, int]) -> None:
    """Raise ValueError for a grid with too many tokens."""
    if grid[0] * grid[1] > MOST_TOKENS:
        raise ValueError(
            f"{where}: a grid of {grid[0]:,} x {grid[1]:,} patches has more than {MOST_TOKENS:,} "
            "of them; use larger patches, or smaller images."
        )


def check_multiple(where: str, field: str, value: int, unit_name: str, unit: int) -> None:
    """Raise ValueError, with the nearest valid values, for one that is no multiple of a unit."""
    if value % unit:
        raise ValueError(
            f"{where}: {field}={value} is not a multiple of {unit_name}, {unit}; "
            f"the nearest valid values are {nearest_multiples(value, unit)}."
        )


def check_stages(model: Any, fields: Sequence[str]) -> None:
    """Raise ValueError for a transformer of stages whose lists or widths do not fit each other.

    Args:
        model: with the fields `depths`, `widths`, `heads` and `mlp_ratios`.
        fields: those with a number for each stage.
    """
    name, stages = type(model).__name__, len(model.depths)
    for field in fields:
        numbers = getattr(model, field)
        if len(numbers) != stages:
            raise ValueError(
                f"{name}: {field}={shown(numbers)} must have one number for each stage, of "
                f"which depths={shown(model.depths)} has {stages}."
            )
    for i in range(stages):
        check_hidden(name, f"mlp_ratios[{i}]", model.mlp_ratios[i], model.widths[i])
        check_multiple(name, f"widths[{i}]", model.widths[i], f"heads[{i}]", model.heads[i])


def check_patches_fit(where: str, image_size: tuple[int, int], patch: tuple[int, int]) -> None:
    """Raise ValueError, with the nearest valid sizes, for images that patches do not fill."""
    if image_size[0] % patch[0] or image_size[1] % patch[1]:
        heights, widths = map(nearest_multiples, image_size, patch)
        raise ValueError(
            f"{where}: images of {image_size[0]} x {image_size[1]} pixels cannot be cut into "
            f"patches of {patch[0]} x {patch[1]} (height x width); the nearest valid heights are "
            f"{heights}, the nearest valid widths {widths}: resize or pad the images."
        )


def nearest_multiples(value: int, unit: int) -> str:
    """Return the valid numbers around a value, `"224 and 240"`, or the value if it is valid."""
    lower = value // unit * unit
    if lower == value and value:
        return str(value)
    return f"{lower} and {lower + unit}" if lower else str(unit)
