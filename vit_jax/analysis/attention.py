"""What a network attends to: the weights of every layer and head, and pictures of them.

    seen = look(model, variables, images)
    seen.class_map(layer=-1)             # where the class token looks, (batch, height, width)
    seen.to_grid(rollout(seen.weights))  # the same through all layers

What is notable here:
- Weights are asked for with the call (`attention_weights=True`). A call that does not ask computes
  none, and the model is the same.
- Rows are queries and sum to 1, columns are keys, in the order of the tokens: class token,
  distillation token, registers, then patches in raster order.
- Everything but `look` and `relevance` is arithmetic on arrays, and takes weights of any origin.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Float

from vit_jax.errors import UserError
from vit_jax.models.layout import read_blocks, unstack_blocks
from vit_jax.models.legal import pair

Weights = Sequence[Float[np.ndarray, "batch heads queries keys"]]


@dataclass(frozen=True)
class Attention:
    """What a model attended to in a batch of pictures.

    weights: of every layer `(batch, heads, tokens, tokens)`, float32; rows sum to 1.
    logits: `(batch, classes)`.
    grid: `(height, width)` of the pictures in patches.
    prefix: tokens in front of the patches.
    patch_size: `(height, width)` in pixels.
    """

    weights: tuple[Float[np.ndarray, "batch heads tokens tokens"], ...]
    logits: Float[np.ndarray, "batch classes"]
    grid: tuple[int, int]
    prefix: int
    patch_size: tuple[int, int]

    def layer(self, number: int) -> Float[np.ndarray, "batch heads tokens tokens"]:
        """The weights of a layer, counted from 0; -1 is the last.

        Raises UserError for one that the model has not.
        """
        depth = len(self.weights)
        if not -depth <= number < depth:
            raise UserError(
                f"layer {number}: the model has {depth} layers, 0 to {depth - 1} "
                f"(or -{depth} to -1, from the last)"
            )
        return self.weights[number]

    def class_map(
        self, layer: int = -1, head: int | None = None, query: int = 0
    ) -> Float[np.ndarray, "batch height width"]:
        """What a token gives each patch of its attention; of a class token by default.

        Of a model without prefix tokens it is the mean over the patches' queries.

        Args:
            layer: from 0; -1 is the last.
            head: from 0; None: the mean over the heads.
            query: which prefix token asks.

        Raises:
            UserError: no such layer, head or token.
        """
        weights = self.layer(layer)
        heads = weights.shape[1]
        if head is not None and not 0 <= head < heads:
            raise UserError(f"head {head}: layer {layer} has {heads} heads, 0 to {heads - 1}")
        weights = weights.mean(axis=1) if head is None else weights[:, head]
        return self.to_grid(weights, query)

    def to_grid(
        self, weights: Float[np.ndarray, "batch tokens tokens"], query: int = 0
    ) -> Float[np.ndarray, "batch height width"]:
        """The row of a prefix token (of none there: the mean row) on the grid of the patches."""
        if self.prefix and not 0 <= query < self.prefix:
            raise UserError(f"query {query}: the model has {self.prefix} prefix tokens")
        row = weights[:, query] if self.prefix else weights.mean(axis=1)
        return row[:, self.prefix :].reshape(-1, *self.grid)


def look(
    model: nn.Module,
    variables: Mapping[str, Any],
    images: Float[Array, "batch height width channels"],
) -> Attention:
    """Runs a model once and keeps the attention weights of every layer.

    Args:
        model: one that attends from all tokens to all tokens, blocks stacked or apart.
        variables: its parameters, and other collections if it has some.
        images: float32, normalised.

    Raises:
        UserError: the model has no attention, or none between all its tokens.
    """
    _check_attends(model)

    @jax.jit
    def forward(variables, images):
        logits, kept = model.apply(
            variables, images, attention_weights=True, mutable=["intermediates"]
        )
        return logits, read_blocks(kept["intermediates"], "attn/weights")

    logits, weights = forward(variables, images)
    grid, prefix = _geometry(model, images)
    return Attention(
        tuple(np.asarray(w, np.float32) for w in weights),
        np.asarray(logits),
        grid,
        prefix,
        pair(model.patch_size),
    )


def rollout(weights: Weights, residual: float = 0.5) -> Float[np.ndarray, "batch tokens tokens"]:
    """Attention through all layers, the residual paths taken into account; rows sum to 1.

    Of every layer the mean over heads is mixed with the identity, which stands for the residual
    path; the product of all, last layer first, says how much of each input token is in each output
    token (Abnar & Zuidema 2020, "Quantifying attention flow in transformers", section 3).

    Args:
        weights: of every layer, first layer first.
        residual: the part of the identity.
    """
    tokens = weights[0].shape[-1]
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
        classes: one for each picture; None: the class that the model finds most probable.

    Raises:
        UserError: as `look`.
    """
    seen = look(model, variables, images)
    wanted = jnp.asarray(seen.logits.argmax(-1) if classes is None else classes)
    shapes = jax.eval_shape(
        lambda v, x: model.apply(v, x, attention_weights=True, mutable=["intermediates"])[1],
        variables,
        images,
    )["intermediates"]
    # Zeros that are added to the weights, for the gradient with respect to them.
    added = {
        path: jnp.zeros(leaf[0].shape, leaf[0].dtype)
        for path, leaf in flatten_dict(shapes).items()
        if path[-1] == "weights" and path[0].startswith("blocks")
    }

    @jax.jit
    def gradients(added):
        def logit(added):
            collections = {**variables, "perturbations": unflatten_dict(added)}
            logits = model.apply(collections, images, attention_weights=True)
            return jnp.take_along_axis(logits, wanted[:, None], axis=-1).sum()

        return jax.grad(logit)(added)

    nested = jax.device_get(unstack_blocks(unflatten_dict(gradients(added))))
    through = np.eye(seen.weights[0].shape[-1])[None]
    for i, weights in enumerate(seen.weights):
        gradient = np.asarray(nested[f"blocks_{i}"]["attn"]["weights"], np.float64)
        through = through + np.maximum(gradient * weights, 0).mean(axis=1) @ through
    return through.astype(np.float32)


def mean_distance(
    weights: Float[np.ndarray, "batch heads tokens tokens"],
    grid: tuple[int, int],
    prefix: int = 0,
    patch_size: tuple[int, int] = (1, 1),
) -> Float[np.ndarray, " heads"]:
    """How far patches look in a layer, in pixels: the paper's figure 7, on the right.

    The distance between centres of patches, averaged over keys by their weights (those of prefix
    tokens left out, the others made to sum to 1), then over queries and pictures.

    Args:
        grid: `(height, width)` of the picture in patches.
        patch_size: `(height, width)` in pixels; by default distances are in patches.
    """
    rows, columns = (axis.ravel() for axis in np.indices(grid))
    places = np.stack([rows * patch_size[0], columns * patch_size[1]], axis=-1).astype(np.float64)
    distances = np.linalg.norm(places[:, None] - places[None], axis=-1)
    among = np.asarray(weights, np.float64)[:, :, prefix:, prefix:]
    among = among / np.maximum(among.sum(axis=-1, keepdims=True), np.finfo(np.float64).tiny)
    return (among * distances).sum(axis=-1).mean(axis=(0, 2))


def entropy(
    weights: Float[np.ndarray, "batch heads queries keys"],
) -> Float[np.ndarray, " heads"]:
    """The mean entropy of a head's rows, in nats: 0 where one key takes all, at most log(keys)."""
    weights = np.asarray(weights, np.float64)
    terms = np.where(weights > 0, -weights * np.log(np.where(weights > 0, weights, 1)), 0)
    return terms.sum(axis=-1).mean(axis=(0, 2))


def head_similarity(
    weights: Float[np.ndarray, "batch heads queries keys"],
) -> Float[np.ndarray, "heads heads"]:
    """Cosine similarity between the heads of a layer, over all pictures, queries and keys."""
    flat = np.asarray(weights, np.float64).swapaxes(0, 1).reshape(weights.shape[1], -1)
    flat = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    return flat @ flat.T


def upsample(
    maps: Float[np.ndarray, "batch height width"], size: tuple[int, int]
) -> Float[np.ndarray, "batch pixel_height pixel_width"]:
    """Maps on the grid of patches enlarged to the picture, linearly between centres of patches."""
    return np.asarray(jax.image.resize(jnp.asarray(maps), (len(maps), *size), "linear"))


def _check_attends(model: nn.Module) -> None:
    """Raises UserError for a model whose blocks do not attend from all tokens to all."""
    name = type(model).__name__
    if not all(hasattr(model, field) for field in ("heads", "depth", "patch_size")):
        raise UserError(
            f"{name} has no attention of every token to every token to look at; take a ViT or "
            "one of its kin (DeiT, DINOv2, hybrids)"
        )


def _geometry(model: nn.Module, images: Array) -> tuple[tuple[int, int], int]:
    """The grid of the pictures in patches, and the number of prefix tokens."""
    rows, columns = pair(model.patch_size)
    return (images.shape[1] // rows, images.shape[2] // columns), model.prefix
