"""Weights of the Perception Encoder under timm's names: its core, language and spatial towers.

They are ViTs with a table, rotary positions and a norm before the blocks. The core has attention
pooling over all tokens; the others have no last norm, and their pooled features are the mean of the
patches. timm scales the coordinates of the rotation to the grid of training, so that images of
another size have the same range; the authors' code, read by `image_text`, does not.

Source: Bolya et al. 2025, "Perception Encoder"; timm 1.0.31, `vit_pe_*`, by running it.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from vit_jax.models.fields import pair
from vit_jax.models.vit.weights import timm
from vit_jax.models.vit.weights.image_text import ORIGINS
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import timm_arguments
from vit_jax.weights.mapping import Tensors, rows_without

# timm's `gamma_1` for `ls1.gamma`, and one name for the last norm.
_LEFT_OUT = ("ls1.gamma", "ls2.gamma", "fc_norm")
ROWS = rows_without(timm.ROWS, _LEFT_OUT)
_FREE = ("embed_dim", "depth", "num_heads", "patch_size", "mlp_ratio", "global_pool")


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file with timm's names."""
    config = config or {}
    timm_arguments.check_plain(config, _FREE, {"global_pool": ("avg", "map")})
    _, origin = formats.choose_origin(hints, {"pe": ORIGINS["pe"]}, "pe")
    arguments = formats.configured_section(config, "model_args")
    width, in_channels, *patch = formats.axes_of(
        tensors, "patch_embed.proj.weight", "out, in, height, width"
    )
    has_class, has_pool = "cls_token" in tensors, "attn_pool.latent" in tensors
    rows = formats.axes_of(tensors, "pos_embed", "1, rows, width")[1]
    hints = timm_arguments.with_size(hints, config)
    _, size = formats.position_grid(rows, (int(has_class),), tuple(patch), hints)
    fields = {
        **origin.fields,
        "num_classes": formats.outputs_of(tensors, "head.weight"),
        "image_size": formats.side_or_pair(size),
        "patch_size": formats.side_or_pair(tuple(patch)),
        "in_channels": in_channels,
        "width": width,
        "depth": formats.count_blocks(tensors, r"blocks\.(\d+)\.norm1\.weight"),
        "heads": formats.need_heads(hints, arguments.get("num_heads") or _HEADS.get(width), width),
        "mlp_width": formats.most_common_side(tensors, r"blocks\.\d+\.mlp\.fc1\.weight", 0),
        "class_token": has_class,
        "pool": "map" if has_pool else "mean",
        "final_norm": "norm.weight" in tensors,
        "layer_scale": 0.1 if "blocks.0.gamma_1" in tensors else None,
        "rotary_grid": _trained_grid(timm_arguments.architecture_of(config), size, tuple(patch)),
        "pos_resize": "torch-bicubic-antialias",
    }
    if has_pool:
        hidden = formats.axes_of(tensors, "attn_pool.mlp.fc1.weight", "out, in")[0]
        fields |= {"pool_heads": 8, "pool_prefix": True}
        fields["pool_mlp_width"] = None if hidden == fields["mlp_width"] else hidden
    pretrained = timm_arguments.pretrained_of(config)
    sides = pair(fields["patch_size"])
    preprocessing = timm_arguments.preprocessing_of(arguments, pretrained, sides)
    labels = timm_arguments.label_names(config, fields["num_classes"])
    notes = (_PROJECTION,) if fields["num_classes"] and has_pool and labels is None else ()
    return formats.ModelSpec(fields, {**origin.preprocessing, **preprocessing}, "pe", labels, notes)


def _trained_grid(architecture: str, size: tuple[int, int], patch: tuple[int, int]) -> int:
    """Return the side of the grid of training, by the architecture, else that of the table."""
    match = re.fullmatch(r"vit_pe_(core|lang|spatial)_(\w+?)_patch(\d+)_(\d+).*", architecture)
    if match is None:
        return size[0] // patch[0]
    kind, _, side, pixels = match.groups()
    return int(pixels) // int(side) if kind == "core" else 32


_PROJECTION = (
    "its head is the projection to the space of images and texts, so its outputs are no classes; "
    "use the features, or set num_classes for a new head"
)
_HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1536: 16}
_CORE = formats.CheckpointFormat(
    name="timm",
    signature=(
        r"norm_pre\.weight",
        r"blocks\.0\.attn\.qkv\.weight",
        r"attn_pool\.latent",
    ),
    rows=ROWS,
    describe=describe,
)
# Towers of language and space have neither pooling nor a last norm, and all other ViTs have one.
_TOWER = dataclasses.replace(
    _CORE, signature=_CORE.signature[:2], absent=(r"norm\.weight", r"fc_norm\.weight")
)
FORMATS = (_CORE, _TOWER)
