"""Grad-CAM: where in an image a class is seen, for any architecture with blocks.

    seen = grad_cam(model, variables, images)     # for the most probable class
    seen.maps                                     # (batch, rows, columns)

Selvaraju et al. 2017, "Grad-CAM: visual explanations from deep networks via gradient-based
localization", equations 1 and 2: the channels of a block's output, each weighted by the mean over
places of the gradient of the class's logit, are added, and what is negative is left out.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.traverse_util import flatten_dict
from jaxtyping import Array, Float, Int

from vit_jax.analysis.attention.compute import check_grid
from vit_jax.analysis.inputs import check_normalised
from vit_jax.errors import UserError, shown
from vit_jax.models.description.blocks import BlockInfo, block_infos
from vit_jax.models.stacking import unstack_blocks


@dataclass(frozen=True)
class GradCam:
    """Maps of a class, not below 0, on the grid of a block.

    maps: `(batch, rows, columns)`, in units of the logit. classes: the class of each image.
    """

    maps: Float[np.ndarray, "batch rows columns"]
    classes: Int[np.ndarray, " batch"]
    block: BlockInfo


def grad_cam(
    model: nn.Module,
    variables: Mapping[str, Any],
    images: Float[Array, "batch height width channels"],
    classes: Sequence[int] | None = None,
    block: int | None = None,
) -> GradCam:
    """Return where the logit of a class comes from.

    Args:
        model: a classifier. variables: its parameters, and other collections if it has any.
        images: float32, normalised.
        classes: one for each image; None: the most probable class.
        block: from 0, -1 is the last. None: the last one whose places count: behind the last block
            of a ViT that classifies by its class token, patches no longer do.

    Raises:
        UserError: unknown block or class, a model without blocks on a grid or without classes, or
            images that are not normalised.
    """
    check_normalised(images)
    if getattr(model, "scan_layers", False):
        model, variables = model.clone(scan_layers=False), unstack_blocks(variables)
    check_grid(model, "maps of a class")
    blocks = block_infos(model, tuple(images.shape[1:3]))
    if not blocks:
        raise UserError(f"{type(model).__name__} lists no blocks, whose output Grad-CAM needs")
    logits = np.asarray(_logits(model, variables, images))
    if logits.ndim != 2 or not getattr(model, "num_classes", 1):
        raise UserError("Grad-CAM needs the logit of a class, but this model has no classifier")
    wanted = logits.argmax(axis=-1) if classes is None else np.asarray(classes)
    count, most = logits.shape
    if wanted.shape != (count,) or wanted.min() < 0 or wanted.max() >= most:
        raise UserError(
            f"classes {shown(classes)} are invalid; give one for each of the {count} images, from "
            f"0 to {most - 1}"
        )
    if block is not None:
        if not -len(blocks) <= block < len(blocks):
            raise UserError(
                f"block {block}: the model has {len(blocks)} blocks, 0 to {len(blocks) - 1}"
            )
        return _cam(model, variables, images, wanted, blocks[block])[0]
    for one in reversed(blocks):
        found, counts = _cam(model, variables, images, wanted, one)
        if counts:
            break
    return found


def _cam(
    model: nn.Module,
    variables: Mapping[str, Any],
    images: Array,
    wanted: Int[np.ndarray, " batch"],
    block: BlockInfo,
) -> tuple[GradCam, bool]:
    """Return the maps of a block, and whether its places have any effect."""
    output, gradient = (
        np.asarray(x, np.float32) for x in _gradient(model, block.path, variables, images, wanted)
    )
    places = (len(output), block.grid[0] * block.grid[1], output.shape[-1])
    output, gradient = (_places(x, block).reshape(places) for x in (output, gradient))
    weights = gradient.mean(axis=1, keepdims=True)
    maps = np.maximum((weights * output).sum(axis=-1), 0).reshape(-1, *block.grid)
    return GradCam(maps, wanted, block), bool(gradient.any())


def _places(values: np.ndarray, block: BlockInfo) -> np.ndarray:
    """Return a block's values without those of tokens in front."""
    tokens = values.reshape(len(values), -1, values.shape[-1])
    places = tokens[:, block.prefix :]
    if places.shape[1] != block.grid[0] * block.grid[1]:
        rows, columns = block.grid
        raise UserError(
            f"{block.path} has {places.shape[1]} tokens and a grid of {rows} x {columns} places, "
            "so Grad-CAM cannot place them; use an image model without merged or dropped tokens"
        )
    return places


@functools.partial(jax.jit, static_argnums=0)
def _logits(model: nn.Module, variables: Mapping[str, Any], images: Array) -> Array:
    return model.apply(variables, images)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _gradient(
    model: nn.Module, path: str, variables: Mapping[str, Any], images: Array, wanted: Array
) -> tuple[Array, Array]:
    """Return the output of a block, and the gradient of the wanted logits with respect to it."""

    def run(added: Array | float) -> tuple[Array, Array]:
        def intercept(function, arguments, options, context):
            out = function(*arguments, **options)
            module = context.module
            bound = module.scope is not None and context.method_name == "__call__"
            return out + added if bound and "/".join(module.path) == path else out

        with nn.intercept_methods(intercept):
            logits, kept = model.apply(variables, images, mutable=["intermediates"])
        own = jnp.take_along_axis(logits, wanted[:, None], axis=-1).sum()
        return own, flatten_dict(kept["intermediates"], sep="/")[f"{path}/out"][0]

    # Zeros are added to the output, for the gradient with respect to them.
    shape = jax.eval_shape(run, 0.0)[1]
    gradient, output = jax.grad(run, has_aux=True)(jnp.zeros(shape.shape, shape.dtype))
    return output, gradient
