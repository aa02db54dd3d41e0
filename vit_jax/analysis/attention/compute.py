"""Attention maps: the weights of every layer and head, rollout and relevance.

    seen = compute_attention(model, variables, images)
    seen.class_map(layer=-1)             # attention of the class token, (batch, height, width)
    seen.to_grid(rollout(seen.weights))  # the same through all layers
    seen.layers[0].mean_distance()       # of every head, in pixels

- Weights are requested with the call (`attention_weights=True`). Other calls compute none, and the
  model is the same.
- Rows are queries and sum to 1, columns are keys, in the order of the tokens: class token,
  distillation token, registers, then patches in raster order.
- The layers of a pyramid (Swin, PVT) differ in maps, patches and keys, so each `Layer` has its own
  geometry. Layers are counted through all stages.
- Everything except `compute_attention` and `relevance` is arithmetic on arrays, and accepts weights
  of any origin.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Float

from vit_jax.analysis.attention.layers import (
    Layer,
    Query,
    Sides,
    check_shares,
    entropy,
    head_similarity,
    mean_distance,
)
from vit_jax.analysis.inputs import check_normalised
from vit_jax.errors import UserError
from vit_jax.models.description.blocks import BlockInfo, block_infos
from vit_jax.models.stacking import unstack_blocks
from vit_jax.models.tokens.fields import check_all_tokens, reduces_tokens

__all__ = [
    "Attention",
    "Layer",
    "compute_attention",
    "entropy",
    "head_similarity",
    "mean_distance",
    "over_image",
    "relevance",
    "rollout",
    "upsample",
]

_OF_POOLING = ("map_head", "attn", "weights")  # sown by the probe of attention pooling

Weights = Sequence[Float[np.ndarray, "batch heads queries keys"]]


@dataclass(frozen=True)
class Attention:
    """Attention of a model in a batch of images.

    layers: first layer first, through all stages.
    logits: `(batch, classes)`.
    pooling: attention of the probe to the patches, for attention pooling; else None.
    """

    layers: tuple[Layer, ...]
    logits: Float[np.ndarray, "batch classes"]
    pooling: Layer | None = None

    @property
    def weights(self) -> tuple[Float[np.ndarray, "batch heads queries keys"], ...]:
        """Attention weights of every layer, as the model computes them."""
        return tuple(layer.weights for layer in self.layers)

    @property
    def grid(self) -> Sides:
        """Grid of patches, `(height, width)`, if it is the same in all layers."""
        return self._of_all_layers("grid")

    @property
    def prefix(self) -> int:
        """Number of prefix tokens, if it is the same in all layers."""
        return self._of_all_layers("prefix")

    @property
    def patch_size(self) -> Sides:
        """Patch size, `(height, width)` in pixels, if it is the same in all layers."""
        return self._of_all_layers("patch_size")

    def layer(self, number: int) -> Layer:
        """Return a layer, counted from 0 through all stages; -1 is the last.

        Raises UserError for a layer that the model does not have.
        """
        depth = len(self.layers)
        if not -depth <= number < depth:
            raise UserError(
                f"layer {number}: the model has {depth} layers, 0 to {depth - 1} "
                f"(or -{depth} to -1, from the last)"
            )
        return self.layers[number]

    def stage(self, layer: int = -1) -> tuple[Layer, ...]:
        """Return the layers with the same tokens as this one: its stage; in a ViT all layers.

        Raises UserError for a layer that the model does not have.
        """
        stage = self.layer(layer).stage
        return tuple(layer for layer in self.layers if layer.stage == stage)

    def class_map(
        self, layer: int = -1, head: int | None = None, query: Query = 0
    ) -> Float[np.ndarray, "batch height width"]:
        """Return the attention of a token to each patch; by default of the class token.

        In a layer without prefix tokens it is the mean over the queries of patches.

        Args:
            layer: from 0; -1 is the last.
            head: from 0; None: the mean over the heads.
            query: index of a prefix token, or a patch as (row, column).

        Raises:
            UserError: unknown layer, head, token or patch.
        """
        return self.layer(layer).map(query, head)

    def to_grid(
        self, weights: Float[np.ndarray, "batch tokens tokens"], query: Query = 0
    ) -> Float[np.ndarray, "batch height width"]:
        """Return a token's row (0 without prefix tokens: the mean row) on the grid of patches.

        In a pyramid the grid depends on the layer: use `seen.layers[i].to_grid`.
        """
        self._of_all_layers("grid")
        return self.layers[-1].to_grid(weights, query)

    def _of_all_layers(self, field: str) -> Any:
        values = {getattr(layer, field) for layer in self.layers}
        if len(values) > 1:
            raise UserError(
                f"the layers of this model differ in {field}; use that of one layer, "
                f"seen.layers[i].{field}"
            )
        return values.pop()


def compute_attention(
    model: nn.Module,
    variables: Mapping[str, Any],
    images: Float[Array, "batch height width channels"],
) -> Attention:
    """Run a model once and return the attention weights of every layer.

    Args:
        model: a ViT or a related model, with stacked or separate blocks, a Swin or a PVT.
        variables: its parameters, and other collections if it has any.
        images: float32, normalised.

    Raises:
        UserError: the model has no attention, or images that are not normalised.
    """
    check_normalised(images)
    geometry = layer_geometry(model, tuple(images.shape[1:3]))
    logits, kept = _forward(model, variables, images)
    weights = {
        path: np.asarray(leaf[0], np.float32)
        for path, leaf in flatten_dict(unstack_blocks(kept), sep="/").items()
        if path.endswith("attn/weights")
    }
    layers = [
        Layer(weights[f"{path}/attn/weights"], name=f"layer {number}", **fields)
        for number, (path, fields) in enumerate(geometry.items())
    ]
    pooling = None
    if (of_probe := weights.get("/".join(_OF_POOLING))) is not None:
        last = layers[-1]
        # The probe is the only query and has no position.
        places = {"keys_grid": last.grid, "keys_prefix": 0, "patch_size": last.patch_size}
        pooling = Layer(of_probe, (0, 0), 1, **places, name="the pooling")
    return Attention(tuple(layers), np.asarray(logits), pooling)


@functools.partial(jax.jit, static_argnums=0)
def _forward(model: nn.Module, variables: Mapping[str, Any], images: Array) -> tuple[Array, dict]:
    """Return logits and sown values; compiled once for each model and batch size."""
    logits, kept = model.apply(variables, images, attention_weights=True, mutable=["intermediates"])
    return logits, kept["intermediates"]


def rollout(weights: Weights, residual: float = 0.5) -> Float[np.ndarray, "batch tokens tokens"]:
    """Compute the attention rollout through all layers with residual paths; rows sum to 1.

    The mean over heads of every layer is mixed with the identity, which represents the residual
    path; the product of all, last layer first, gives the contribution of each input token to each
    output token (Abnar & Zuidema 2020, "Quantifying attention flow in transformers", section 3).

    In a pyramid that is possible within a stage whose keys are its tokens, from
    `[layer.matrix() for layer in seen.stage(i)]`.

    Args:
        weights: of every layer, first layer first.
        residual: weight of the identity.

    Raises:
        UserError: tokens differ between layers, or rows are not probability distributions.
    """
    tokens = weights[0].shape[-1]
    for number, layer in enumerate(weights):
        if layer.shape[-2:] != (tokens, tokens):
            queries, keys = layer.shape[-2:]
            raise UserError(
                "rollout multiplies the attention between the same tokens, but layer "
                f"{number} of {len(weights)} has {queries} queries and {keys} keys where layer 0 "
                f"has {tokens} keys; use the layers of a stage whose keys are not reduced "
                "(seen.stage), or a single layer"
            )
        check_shares(np.asarray(layer), "rollout", f"layer {number}")
    through = np.eye(tokens)[None]
    for layer in weights:
        mixed = (1 - residual) * np.asarray(layer, np.float64).mean(axis=1)
        mixed += residual * np.eye(tokens)
        mixed /= mixed.sum(axis=-1, keepdims=True)
        through = mixed @ through
    return np.broadcast_to(through, (weights[0].shape[0], tokens, tokens)).astype(np.float32)


def relevance(
    model: nn.Module,
    variables: Mapping[str, Any],
    images: Float[Array, "batch height width channels"],
    classes: Sequence[int] | None = None,
) -> Float[np.ndarray, "batch tokens tokens"]:
    """Compute attention through all layers, weighted by its effect on the logit of a class.

    For every layer `A = mean over heads of max(0, gradient x weights)` is added along the residual
    path, `R = R + A R`, with the gradient of the class's logit with respect to the weights (Chefer
    et al. 2021, "Generic attention-model explainability", equations 5 and 6, for self-attention).

    Args:
        classes: one for each image; None: the most probable class.

    Raises:
        UserError: as `compute_attention`; the model is a pyramid, or has no classes.
    """
    check_normalised(images)
    blocks = attention_blocks(model, tuple(images.shape[1:3]))
    if not all(_keeps_tokens(block, blocks[0]) for block in blocks):
        raise UserError(
            f"relevance follows the same tokens through all layers, but {type(model).__name__} "
            "merges them between its stages; use one layer, or rollout within a stage; "
            "input_gradient of vit_jax.analysis.errors.saliency works for any "
            "classifier"
        )
    seen = compute_attention(model, variables, images)
    if model.num_classes == 0 or seen.logits.ndim != 2:
        raise UserError("relevance needs the logit of a class, but this model has no classifier")
    if classes is None and not np.isfinite(seen.logits).all():
        raise UserError(
            "the logits of an image are not finite, so no class is the most probable; pass "
            "classes, or use another checkpoint"
        )
    wanted = jnp.asarray(seen.logits.argmax(-1) if classes is None else classes)
    shapes = jax.eval_shape(functools.partial(_forward, model), variables, images)[1]
    # Zeros are added to the weights, for the gradient with respect to them.
    added = {
        path: jnp.zeros(leaf[0].shape, leaf[0].dtype)
        for path, leaf in flatten_dict(shapes).items()
        if path[-1] == "weights" and path != _OF_POOLING
    }
    gradients = _gradients(model, added, variables, images, wanted)
    flat = flatten_dict(jax.device_get(unstack_blocks(unflatten_dict(gradients))), sep="/")
    through = np.eye(seen.weights[0].shape[-1])[None]
    for block, weights in zip(blocks, seen.weights, strict=True):
        gradient = np.asarray(flat[f"{block.path}/attn/weights"], np.float64)
        through = through + np.maximum(gradient * weights, 0).mean(axis=1) @ through
    return through.astype(np.float32)


@functools.partial(jax.jit, static_argnums=0)
def _gradients(
    model: nn.Module,
    added: dict[tuple[str, ...], Array],
    variables: Mapping[str, Any],
    images: Array,
    wanted: Array,
) -> dict[tuple[str, ...], Array]:
    """Return the gradient of the wanted logits with respect to additions to the weights."""

    def logit(added):
        collections = {**variables, "perturbations": unflatten_dict(added)}
        logits = model.apply(collections, images, attention_weights=True)
        return jnp.take_along_axis(logits, wanted[:, None], axis=-1).sum()

    return jax.grad(logit)(added)


def upsample(
    maps: Float[np.ndarray, "batch height width"], size: tuple[int, int]
) -> Float[np.ndarray, "batch pixel_height pixel_width"]:
    """Enlarge maps from patches to the image, linearly between the centres of patches."""
    return np.asarray(jax.image.resize(jnp.asarray(maps), (len(maps), *size), "linear"))


def over_image(
    maps: Float[np.ndarray, "batch height width"], layer: Layer, size: Sides
) -> Float[np.ndarray, "batch pixel_height pixel_width"]:
    """Enlarge maps on the grid of a layer's keys to images of a size in pixels.

    Patches may extend beyond the image, where the model pads it; that part is cut off.
    """
    patches = tuple(n * side for n, side in zip(layer.grid, layer.patch_size, strict=True))
    whole = patches if all(patches) else tuple(size)  # the probe of a pooling has no patch
    return upsample(maps, whole)[:, : size[0], : size[1]]


def attention_blocks(model: nn.Module, size: Sides) -> list[BlockInfo]:
    """Return the blocks with attention, at an image size in pixels.

    Raises UserError for a model without attention.
    """
    blocks = [block for block in block_infos(model, size) if block.kind == "attention"]
    if not blocks:
        raise UserError(
            f"{type(model).__name__} has no attention; ViT and related models (DeiT, DINOv2, "
            "hybrids), Swin and PVT have; input_gradient of "
            "vit_jax.analysis.errors.saliency works for any classifier"
        )
    check_grid(model, "attention maps")
    return blocks


def check_grid(model: nn.Module, what: str) -> None:
    """Raise UserError for a model whose tokens leave the grid of patches, which something needs."""
    if not reduces_tokens(model):
        return
    try:
        check_all_tokens(model, f"{what} need the whole grid")
    except ValueError as error:
        raise UserError(
            f"{str(error).rstrip('.')} (--field), or draw the tokens that are left (attention "
            "--tokens=FILE)"
        ) from error


def layer_geometry(model: nn.Module, size: Sides) -> dict[str, dict[str, Any]]:
    """Return the fields of `Layer` for the path of every block, at an image size in pixels.

    Raises UserError for a model without attention.
    """
    layers, visible = {}, {}
    for block in attention_blocks(model, size):
        limits = (block.grid, block.prefix, block.windows, block.local_window)
        if limits not in visible:  # large, and the same in many blocks
            visible[limits] = block.visible()
        layers[block.path] = {
            "grid": block.grid,
            "prefix": block.prefix,
            "patch_size": block.patch_size,
            "keys_grid": block.keys_grid,
            "keys_prefix": block.keys_prefix,
            "windows": block.windows,
            "visible": visible[limits],
            "stage": block.stage,
        }
    return layers


def _keeps_tokens(block: BlockInfo, first: BlockInfo) -> bool:
    """Return whether queries and keys of a block are the tokens of the first block."""
    keys = (block.keys_grid or block.grid, block.prefix)
    return (
        block.windows is None and keys == (block.grid, first.prefix) and (block.grid == first.grid)
    )
