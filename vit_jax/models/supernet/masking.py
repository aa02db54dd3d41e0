"""Subnets of a ViT by masks, and by slices: the same numbers, up to rounding.

A subnet has the leading channels, heads and hidden units of the supernet's weights, and its first
blocks. All other weights count as zero, so that all other channels are zero and a block that is
left out adds nothing to the tokens. What remains is the statistics of norms, which are taken over
the channels of the subnet. The sizes are arguments of the program: one program serves for all
subnets, at the cost of the whole supernet for each, and `vmap` over sizes computes many at once.

    with as_subnet(model, params, sizes) as masked:
        logits = model.apply({"params": masked}, images)

Source: AutoFormer (Chen et al. 2021), "weight entanglement". Its authors slice the weights instead.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Bool, Float, Int

from vit_jax.models.inputs import abstract_variables
from vit_jax.models.layers.norm import LayerNorm, RMSNorm
from vit_jax.models.positions.types import POSITION_KINDS
from vit_jax.models.supernet.space import SearchSpace, Sizes, Subnet
from vit_jax.models.vit.module import ViT

Axes = Mapping[tuple[str, ...], tuple[str | None, ...]]

_BLOCK = "blocks_"
_GROWTH = {"width": 2, "heads": 3, "mlp_width": 5}  # by which an axis is recognised


@contextlib.contextmanager
def as_subnet(model: ViT, params: Mapping[str, Any], sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Give the parameters of a subnet, masked; inside, the model computes this subnet.

    Args:
        model: the supernet. params: its parameters. sizes: of the subnet, traced or not.

    Raises:
        ValueError: the model is no supernet, see `parameter_axes`.
    """
    axes = parameter_axes(model)
    masked = {
        path: jnp.where(_mask(path, leaf.shape, axes[path], sizes), leaf, 0)
        for path, leaf in flatten_dict(dict(params)).items()
    }

    def over_channels(run, args, kwargs, context):
        layer = context.module
        if context.method_name == "__call__" and isinstance(layer, LayerNorm | RMSNorm):
            path = (*layer.path, "scale")
            [axis] = axes[path]
            if axis is not None:
                return _norm(layer, *args, _size(path, axis, sizes))
        return run(*args, **kwargs)

    with nn.intercept_methods(over_channels):
        yield unflatten_dict(masked)


def slice_subnet(model: ViT, params: Mapping[str, Any], subnet: Subnet) -> dict[str, Any]:
    """Return the parameters of a subnet as those of a ViT with its sizes, `subnet_of(model)`.

    Raises:
        ValueError: the model is no supernet, or smaller than the subnet.
    """
    axes, blocks = parameter_axes(model), len(per_block(model)[0])
    _check_size(model, subnet)
    sizes = subnet.sizes(blocks)
    sliced = {}
    for path, leaf in flatten_dict(dict(params)).items():
        block = _block_of(path)
        if block is None or block < subnet.depth:
            lengths = (
                length if axis is None else int(_size(path, axis, sizes))
                for axis, length in zip(axes[path], leaf.shape, strict=True)
            )
            sliced[path] = leaf[tuple(map(slice, lengths))]
    return unflatten_dict(sliced)


def subnet_of(model: ViT, subnet: Subnet) -> ViT:
    """Return the ViT of a subnet: the supernet with its sizes, and with the same head_dim."""
    return model.clone(**subnet.fields(), head_dim=head_dim(model), mlp_ratio=ViT.mlp_ratio)


def head_dim(model: ViT) -> int:
    """Return the channels of a head of a supernet, which all its subnets have."""
    return model.head_dim or model.width // max(per_block(model)[0])


def check_space(model: ViT, space: SearchSpace) -> None:
    """Raise ValueError if subnets of a space do not share the weights of a model."""
    parameter_axes(model)
    if space.patch_sizes:
        raise ValueError(
            "a supernet has one patch size, since patches of several share no weights; omit "
            "patch_sizes, and train a supernet for each."
        )
    if space.head_dim not in (None, head_dim(model)):
        raise ValueError(
            f"subnets with a head_dim of {space.head_dim} need a supernet with the same; it has "
            f"{head_dim(model)}."
        )
    _check_size(model, space.largest)


@functools.lru_cache(maxsize=64)
def parameter_axes(model: ViT) -> Axes:
    """Return what each axis of each parameter is: "width", "heads", "mlp_width", or None.

    An axis is found by how it grows with the sizes, so no layer has to declare it.

    Raises:
        ValueError: the leading part of some parameter is not that of a smaller model.
    """
    heads, mlp_width = per_block(model)
    _check_fields(model)
    model = model.clone(head_dim=head_dim(model), heads=heads, mlp_width=mlp_width)
    sizes = Sizes(model.width, model.depth, heads, mlp_width)
    larger = model.clone(
        width=_GROWTH["width"] * model.width,
        heads=tuple(_GROWTH["heads"] * number for number in heads),
        mlp_width=tuple(_GROWTH["mlp_width"] * width for width in mlp_width),
    )
    shapes, grown = _shapes(model), _shapes(larger)

    def name(path: tuple[str, ...], axis: int, length: int) -> str | None:
        if grown[path][axis] == length:
            return None
        for name, growth in _GROWTH.items():
            if grown[path][axis] == growth * length and length == _size(path, name, sizes):
                return name
        raise ValueError(
            f"{type(model).__name__}: the parameter {'/'.join(path)} of shape {shapes[path]} mixes "
            "several sizes along one axis, so that a subnet has no leading part of it; use "
            "mlp='plain', pool='mean' or 'cls', and attention_norm=False."
        )

    return {
        path: tuple(name(path, axis, length) for axis, length in enumerate(shape))
        for path, shape in shapes.items()
    }


def _check_fields(model: ViT) -> None:
    """Raise ValueError for fields with which masks and slices would differ."""
    vectors = POSITION_KINDS[model.positions].vectors
    reasons = {
        "scan_layers": (not model.scan_layers, "whose blocks have the same sizes", "False"),
        "norm_order": (model.norm_order != "post", "where no block can be left out", "'pre'"),
        "positions": (
            not vectors or model.positions.startswith("learned"),
            "whose vectors depend on the width",
            "'learned', 'relative' or 'rotary'",
        ),
        "attention_type": (
            model.attention_type == "softmax",
            "whose heads are not independent of each other",
            "'softmax'",
        ),
        "tome_r": (not model.tome_r, "which is for each block of a whole network", "0"),
        "keep_ratio": (model.keep_ratio == 1.0, "which is for each block of a whole network", "1"),
    }
    for field, (fits, reason, remedy) in reasons.items():
        if not fits:
            raise ValueError(
                f"{type(model).__name__}: a supernet cannot have {field}="
                f"{getattr(model, field)!r}, {reason}; use {field}={remedy}."
            )


def _check_size(model: ViT, subnet: Subnet) -> None:
    """Raise ValueError for a subnet that is larger than its supernet."""
    heads, mlp_width = per_block(model)
    sizes = {
        "width": (subnet.width, model.width),
        "depth": (subnet.depth, model.depth),
        "heads": (max(subnet.heads), min(heads)),
        "mlp_width": (max(subnet.mlp_widths), min(mlp_width)),
    }
    for field, (wanted, there) in sizes.items():
        if wanted > there:
            raise ValueError(
                f"a subnet has {field}={wanted}, and its supernet only {there}; set "
                f"--config.model.{field}={wanted}, or use smaller subnets."
            )


def per_block(model: ViT) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return heads and width of the hidden layer for every block.

    Raises ValueError for a model that is no ViT.
    """
    if not isinstance(model, ViT):
        raise ValueError(
            f"a supernet is a ViT, and {type(model).__name__} is none; use a name such as ViT-S/16."
        )
    heads = model.heads if isinstance(model.heads, tuple) else (model.heads,) * model.depth
    return heads, tuple(map(model.hidden_width, range(model.depth)))


def _shapes(model: ViT) -> dict[tuple[str, ...], tuple[int, ...]]:
    params = abstract_variables(model)["params"]
    return {path: leaf.shape for path, leaf in flatten_dict(params).items()}


def _block_of(path: tuple[str, ...]) -> int | None:
    """Return the number of the block that a parameter belongs to; None outside of blocks."""
    return int(path[0].removeprefix(_BLOCK)) if path[0].startswith(_BLOCK) else None


def _size(path: tuple[str, ...], axis: str, sizes: Sizes) -> Any:
    """Return the length of an axis in a subnet."""
    size, block = getattr(sizes, axis), _block_of(path)
    if axis == "width":
        return size
    return max(size) if block is None else size[block]


def _mask(
    path: tuple[str, ...], shape: tuple[int, ...], axes: tuple[str | None, ...], sizes: Sizes
) -> Bool[Array, "..."]:
    """Return which numbers of a parameter belong to a subnet; it broadcasts to the shape."""
    block = _block_of(path)
    mask = jnp.asarray(True) if block is None else jnp.asarray(block < sizes.depth)
    for number, axis in enumerate(axes):
        if axis is not None:
            inside = jnp.arange(shape[number]) < _size(path, axis, sizes)
            mask = mask & inside.reshape(-1, *(1,) * (len(shape) - number - 1))
    return mask


def _norm(
    layer: LayerNorm | RMSNorm, x: Float[Array, "*batch channels"], size: Int[Array, ""]
) -> Float[Array, "*batch channels"]:
    """Return the norm over the first `size` channels; the others are zero, and stay it."""
    x = x.astype(jnp.float32)
    share = x.shape[-1] / jnp.maximum(size, 1)  # a mean over all channels times this is over `size`
    if isinstance(layer, LayerNorm):
        inside = jnp.arange(x.shape[-1]) < size
        for _ in range(2):  # the second time is the rounding of the first, see `centre`
            x = jnp.where(inside, x - share * x.mean(-1, keepdims=True), 0)
    square = share * jnp.square(x).mean(-1, keepdims=True)
    normal = x * jax.lax.rsqrt(square + layer.epsilon) * layer.get_variable("params", "scale")
    if isinstance(layer, LayerNorm):
        normal = normal + layer.get_variable("params", "bias")
    return normal.astype(layer.dtype)
