"""Masks of patches, and models that see only a part of them.

- A model is not changed for it: Flax's interceptors act on the tokens that its `embed` returns, so
  rematerialisation, looped blocks and the final norm are those of the model.
- Shapes are static: the number of kept patches is a Python integer, and which patches they are is
  an array of indices.
- A random number is drawn for every patch of the global batch, so no two devices or hosts share a
  mask.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from vit_jax.models.description.blocks import Stem
from vit_jax.models.features import Features
from vit_jax.models.tokens.fields import ANY_TOKENS, check_all_tokens
from vit_jax.models.tokens.reduction import keep_patches
from vit_jax.models.vit.module import ViT


class Mask(NamedTuple):
    """Division of the patches of every image, in raster order, into kept and removed ones.

    kept: indices of the kept patches, in the order in which they are encoded.
    restore: place of every patch among the kept ones followed by the removed ones.
    removed: 1 for removed patches, 0 for kept ones.
    """

    kept: Int[Array, "batch keep"]
    restore: Int[Array, "batch patches"]
    removed: Float[Array, "batch patches"]


def random_mask(noise: Float[Array, "batch patches"], keep: int) -> Mask:
    """Return the masks that keep the `keep` patches with the smallest numbers of each row.

    Source: He et al. 2022, section 3, and the function `random_masking` of their repository.
    """
    order = jnp.argsort(noise, axis=1)
    restore = jnp.argsort(order, axis=1)
    return Mask(order[:, :keep], restore, (restore >= keep).astype(jnp.float32))


def visible_tokens(
    model: ViT,
    images: Float[Array, "batch height width channels"],
    kept: Int[Array, "batch keep"],
    *,
    train: bool = False,
) -> Float[Array, "batch tokens width"]:
    """Return the encoded prefix tokens and kept patches; the others are never encoded.

    Positions are added before patches are dropped. It is the `method` of `model.apply`:

        model.apply(variables, images, kept, method=visible_tokens)
    """
    return visible_features(model, images, kept, train=train).tokens


def visible_features(
    model: ViT,
    images: Float[Array, "batch height width channels"],
    kept: Int[Array, "batch keep"],
    *,
    train: bool = False,
) -> Features:
    """Return the features of a model that sees the kept patches only, see `visible_tokens`.

    Their `grid` is that of all patches. `pooled` is that of the prefix tokens and kept patches.
    """

    def drop(next_function: Callable, args, kwargs, context):
        found = next_function(*args, **kwargs)
        if context.method_name != "embed" or context.module.path != model.path:
            return found
        x, grid = found
        return keep_patches(x, model.prefix, kept), grid

    with nn.intercept_methods(drop):
        return model.features(images, train=train)


def masked_features(
    model: nn.Module,
    images: Float[Array, "batch height width channels"],
    token: Float[Array, " stem_channels"],
    mask: Float[Array, "batch mask_height mask_width"],
    *,
    train: bool = False,
) -> Features:
    """Return the features of a model that sees a token in place of masked parts of the images.

    The token replaces embeddings where the mask is 1, before positions are added. It is the
    `method` of `model.apply`, as `visible_tokens` is.

    Source: Xie et al. 2022, "SimMIM", section 3.1 and the repository's `models/simmim.py`.
    """
    path = (*model.path, *stem_of(model).path)

    def replace(next_function: Callable, args, kwargs, context):
        x = next_function(*args, **kwargs)
        if context.module.path != path or context.method_name != "__call__":
            return x
        rows, columns = (x.shape[i] // mask.shape[i] for i in (1, 2))
        fine = jnp.repeat(jnp.repeat(mask, rows, axis=1), columns, axis=2)[..., None]
        return jnp.where(fine > 0, token.astype(x.dtype), x)

    with nn.intercept_methods(replace):
        return model.features(images, train=train)


def stem_of(model: nn.Module) -> Stem:
    """Return the `patch_stem` of a model. Raises ValueError for one without separate patches."""
    stem = model.patch_stem if hasattr(type(model), "patch_stem") else None
    if stem is None:
        raise ValueError(
            f"{type(model).__name__} has no embeddings of separate patches that a mask could "
            "replace; use a ViT, Swin, PVT or ConvNeXt"
        )
    check_all_tokens(model, "the masked ones are predicted")
    return stem


def check_can_drop(model: nn.Module, *, decoded: bool = True) -> None:
    """Raise ValueError for a model that cannot encode a part of the patches.

    decoded: whether a decoder restores the removed ones from all tokens of the last block.
    """
    name = type(model).__name__
    if not isinstance(model, ViT):
        instead = ", or the task 'simmim', which replaces patches" if decoded else ""
        raise ValueError(
            f"{name} cannot encode a part of the patches, because its layers need the whole grid; "
            f"use a ViT{instead}"
        )
    if model.patch_stem is None:
        raise ValueError(
            f"{name} has overlapping convolutions before its tokens, which would show the removed "
            "patches to the kept ones; use a plain ViT"
        )
    if decoded:
        check_all_tokens(model, "a decoder restores every patch")
    grid = model.block_infos()[0].grid
    if decoded and model.built_grid != grid:
        stored, images = ("{} x {}".format(*sides) for sides in (model.built_grid, grid))
        raise ValueError(
            f"{name} stores positions of {stored} patches, but the images have {images}, and a "
            f"decoder needs the same; use model.table_grid={grid}, or a ViT"
        )
    needed = {
        "positions": (model.positions not in ("relative", "rotary"), "sincos2d"),
        "rotary": (model.rotary == "none", "none"),
        "attention_type": (model.attention_type in ANY_TOKENS, "softmax"),
    }
    if decoded:
        needed |= {
            "pool": (model.pool in ("cls", "mean"), "mean"),
            "pool_norm": (model.pool_norm == "before", "before"),
        }
    for field, (fits, instead) in needed.items():
        if not fits:
            raise ValueError(
                f"model.{field} = {getattr(model, field)!r} does not go with removed patches; "
                f"use {instead!r}"
            )
