"""What a network attends to: the weights of every layer and head, and maps of them.

    seen = look(model, variables, images)
    seen.class_map(layer=-1)             # where the class token looks, (batch, height, width)
    seen.to_grid(rollout(seen.weights))  # the same through all layers
    seen.layers[0].mean_distance()       # of every head, in pixels

What is notable here:
- Weights are asked for with the call (`attention_weights=True`). A call that does not ask computes
  none, and the model is the same.
- Rows are queries and sum to 1, columns are keys, in the order of the tokens: class token,
  distillation token, registers, then patches in raster order.
- The layers of a pyramid (Swin, PVT) differ in maps, patches and keys, so each `Layer` knows its
  own. Layers are counted through all stages.
- Everything but `compute_attention` and `relevance` is arithmetic on arrays, and takes weights of
  any origin.
"""

import functools
import math
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
from vit_jax.models.attention.local import visible_tokens
from vit_jax.models.pvt.module import PVT
from vit_jax.models.stacking import unstack_blocks
from vit_jax.models.swin.module import Swin
from vit_jax.models.validation import pair

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

Weights = Sequence[Float[np.ndarray, "batch heads queries keys"]]


@dataclass(frozen=True)
class Attention:
    """What a model attended to in a batch of images.

    layers: first layer first, through all stages.
    logits: `(batch, classes)`.
    pooling: of a model that pools by attention, what its probe gives the patches; else None.
    """

    layers: tuple[Layer, ...]
    logits: Float[np.ndarray, "batch classes"]
    pooling: Layer | None = None

    @property
    def weights(self) -> tuple[Float[np.ndarray, "batch heads queries keys"], ...]:
        """Of every layer, as the model gives them."""
        return tuple(layer.weights for layer in self.layers)

    @property
    def grid(self) -> Sides:
        """`(height, width)` of the images in patches, where all layers have the same."""
        return self._of_all_layers("grid")

    @property
    def prefix(self) -> int:
        """Tokens in front of the patches, where all layers have the same."""
        return self._of_all_layers("prefix")

    @property
    def patch_size(self) -> Sides:
        """`(height, width)` in pixels, where all layers have the same."""
        return self._of_all_layers("patch_size")

    def layer(self, number: int) -> Layer:
        """A layer, counted from 0 through all stages; -1 is the last.

        Raises UserError for one that the model has not.
        """
        depth = len(self.layers)
        if not -depth <= number < depth:
            raise UserError(
                f"layer {number}: the model has {depth} layers, 0 to {depth - 1} "
                f"(or -{depth} to -1, from the last)"
            )
        return self.layers[number]

    def stage(self, layer: int = -1) -> tuple[Layer, ...]:
        """The layers that have the tokens of this one: its stage; in a ViT all layers.

        Raises UserError for a layer that the model has not.
        """
        stage = self.layer(layer).stage
        return tuple(layer for layer in self.layers if layer.stage == stage)

    def class_map(
        self, layer: int = -1, head: int | None = None, query: Query = 0
    ) -> Float[np.ndarray, "batch height width"]:
        """What a token gives each patch of its attention; of a class token by default.

        Of a layer without prefix tokens it is the mean over the patches' queries.

        Args:
            layer: from 0; -1 is the last.
            head: from 0; None: the mean over the heads.
            query: which prefix token asks, or which patch, as (row, column).

        Raises:
            UserError: no such layer, head, token or patch.
        """
        return self.layer(layer).map(query, head)

    def to_grid(
        self, weights: Float[np.ndarray, "batch tokens tokens"], query: Query = 0
    ) -> Float[np.ndarray, "batch height width"]:
        """The row of a token (0 where none is in front: the mean row) on the grid of the patches.

        Of a pyramid a layer has to say which grid that is: `seen.layers[i].to_grid`.
        """
        self._of_all_layers("grid")
        return self.layers[-1].to_grid(weights, query)

    def _of_all_layers(self, field: str) -> Any:
        values = {getattr(layer, field) for layer in self.layers}
        if len(values) > 1:
            raise UserError(
                f"the layers of this model differ in {field}; take that of one layer, "
                f"seen.layers[i].{field}"
            )
        return values.pop()


def compute_attention(
    model: nn.Module,
    variables: Mapping[str, Any],
    images: Float[Array, "batch height width channels"],
) -> Attention:
    """Runs a model once and keeps the attention weights of every layer.

    Args:
        model: a ViT or one of its kin, blocks stacked or apart, a Swin or a PVT.
        variables: its parameters, and other collections if it has some.
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
    if (of_probe := weights.get("map_head/attn/weights")) is not None:
        last = layers[-1]
        # The probe is the only query, and in front of no patch.
        places = {"keys_grid": last.grid, "keys_prefix": 0, "patch_size": last.patch_size}
        pooling = Layer(of_probe, (0, 0), 1, **places, name="the pooling")
    return Attention(tuple(layers), np.asarray(logits), pooling)


@functools.partial(jax.jit, static_argnums=0)
def _forward(model: nn.Module, variables: Mapping[str, Any], images: Array) -> tuple[Array, dict]:
    """Logits, and what was sown; compiled once for a model and a size of batch."""
    logits, kept = model.apply(variables, images, attention_weights=True, mutable=["intermediates"])
    return logits, kept["intermediates"]


def rollout(weights: Weights, residual: float = 0.5) -> Float[np.ndarray, "batch tokens tokens"]:
    """Attention through all layers, the residual paths taken into account; rows sum to 1.

    Of every layer the mean over heads is mixed with the identity, which stands for the residual
    path; the product of all, last layer first, says how much of each input token is in each output
    token (Abnar & Zuidema 2020, "Quantifying attention flow in transformers", section 3).

    In a pyramid that is possible within a stage whose keys are its tokens, from
    `[layer.matrix() for layer in seen.stage(i)]`.

    Args:
        weights: of every layer, first layer first.
        residual: the part of the identity.

    Raises:
        UserError: tokens are not the same in all layers, or rows are no shares of a whole.
    """
    tokens = weights[0].shape[-1]
    for number, layer in enumerate(weights):
        if layer.shape[-2:] != (tokens, tokens):
            queries, keys = layer.shape[-2:]
            raise UserError(
                "rollout multiplies the attention of the same tokens to themselves, and here layer "
                f"{number} of {len(weights)} has {queries} queries and {keys} keys where layer 0 "
                f"has {tokens} keys; take the layers of a stage whose keys are not reduced "
                "(seen.stage), or look at one layer"
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
    """Attention through all layers, weighted by what it does for the logit of a class.

    Of every layer `mean over heads of max(0, gradient x weights)` is added along the residual path,
    `R = R + A R`, with the gradient of the class's logit with respect to the weights (Chefer et al.
    2021, "Generic attention-model explainability", equations 5 and 6, for self-attention).

    Args:
        classes: one for each image; None: the class that the model finds most probable.

    Raises:
        UserError: as `compute_attention`; the model is a pyramid, or has no classes.
    """
    if isinstance(model, Swin | PVT):
        raise UserError(
            f"relevance follows the same tokens through all layers, and {type(model).__name__} "
            "merges them between its stages; look at one layer, or at rollout within a stage; "
            "input_gradient of vit_jax.analysis.errors.saliency shows what decides in any "
            "classifier"
        )
    seen = compute_attention(model, variables, images)
    if model.num_classes == 0 or seen.logits.ndim != 2:
        raise UserError(
            "relevance is of the logit of a class for an image, and this model gives none"
        )
    if classes is None and not np.isfinite(seen.logits).all():
        raise UserError(
            "the logits of an image are not finite, so that no class is the most probable; name "
            "classes, or take another checkpoint"
        )
    wanted = jnp.asarray(seen.logits.argmax(-1) if classes is None else classes)
    shapes = jax.eval_shape(functools.partial(_forward, model), variables, images)[1]
    # Zeros that are added to the weights, for the gradient with respect to them.
    added = {
        path: jnp.zeros(leaf[0].shape, leaf[0].dtype)
        for path, leaf in flatten_dict(shapes).items()
        if path[-1] == "weights" and path[0].startswith("blocks")
    }
    gradients = _gradients(model, added, variables, images, wanted)
    nested = jax.device_get(unstack_blocks(unflatten_dict(gradients)))
    through = np.eye(seen.weights[0].shape[-1])[None]
    for i, weights in enumerate(seen.weights):
        gradient = np.asarray(nested[f"blocks_{i}"]["attn"]["weights"], np.float64)
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
    """How the logits of the wanted classes change with what is added to the attention weights."""

    def logit(added):
        collections = {**variables, "perturbations": unflatten_dict(added)}
        logits = model.apply(collections, images, attention_weights=True)
        return jnp.take_along_axis(logits, wanted[:, None], axis=-1).sum()

    return jax.grad(logit)(added)


def upsample(
    maps: Float[np.ndarray, "batch height width"], size: tuple[int, int]
) -> Float[np.ndarray, "batch pixel_height pixel_width"]:
    """Maps on the grid of patches enlarged to the image, linearly between centres of patches."""
    return np.asarray(jax.image.resize(jnp.asarray(maps), (len(maps), *size), "linear"))


def over_image(
    maps: Float[np.ndarray, "batch height width"], layer: Layer, size: Sides
) -> Float[np.ndarray, "batch pixel_height pixel_width"]:
    """Maps on the grid of a layer's keys, enlarged to images of a size in pixels.

    Patches may go beyond the image, which the model then pads; what lies there is cut off.
    """
    patches = tuple(n * side for n, side in zip(layer.grid, layer.patch_size, strict=True))
    whole = patches if all(patches) else tuple(size)  # the probe of a pooling is nowhere
    return upsample(maps, whole)[:, : size[0], : size[1]]


def layer_geometry(model: nn.Module, size: Sides) -> dict[str, dict[str, Any]]:
    """What a `Layer` has to know, for the path of every block, at a size of images in pixels.

    Raises UserError for a model without attention.
    """
    if isinstance(model, Swin):
        return _geometry_of_swin(model, size)
    if isinstance(model, PVT):
        return _geometry_of_pvt(model, size)
    if not all(hasattr(model, field) for field in ("heads", "depth", "patch_size", "prefix")):
        raise UserError(
            f"{type(model).__name__} has no attention to look at; a ViT and its kin (DeiT, DINOv2, "
            "hybrids) have, and so have Swin and PVT; input_gradient of "
            "vit_jax.analysis.errors.saliency shows what decides in any classifier"
        )
    patch = pair(model.patch_size)
    grid = (size[0] // patch[0], size[1] // patch[1])
    fields = {"grid": grid, "prefix": model.prefix, "patch_size": patch}
    if getattr(model, "attention_type", "") == "local":
        fields["visible"] = visible_tokens(grid, model.prefix, model.local_window)
    return {f"blocks_{i}": fields for i in range(model.depth)}


def _geometry_of_swin(model: Swin, size: Sides) -> dict[str, dict[str, Any]]:
    patch, blocks = pair(model.patch_size), model.block_windows(size)
    layers = {}
    for path, windows in blocks.items():
        stage = int(path.split("/")[0].removeprefix("stages_"))
        layers[path] = {
            "grid": windows.grid,
            "patch_size": (patch[0] * 2**stage, patch[1] * 2**stage),
            "windows": windows,
            "visible": windows.mask(),
            "stage": stage,
        }
    return layers


def _geometry_of_pvt(model: PVT, size: Sides) -> dict[str, dict[str, Any]]:
    layers = {}
    for stage, (depth, reduction) in enumerate(zip(model.depths, model.reductions, strict=True)):
        side = math.prod(model.patch_sizes[: stage + 1])
        grid = (size[0] // side, size[1] // side)
        prefix = model.prefix if stage == len(model.depths) - 1 else 0
        for block in range(depth):
            layers[f"stages_{stage}/blocks_{block}"] = {
                "grid": grid,
                "prefix": prefix,
                "patch_size": (side, side),
                "keys_grid": (grid[0] // reduction, grid[1] // reduction),
                "keys_prefix": prefix if reduction == 1 else 0,
                "stage": stage,
            }
    return layers
