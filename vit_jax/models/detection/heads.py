"""Outputs of detectors, and the heads that make them: a class and a box for every query."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from flax.linen.initializers import Initializer
from jaxtyping import Array, Float

from vit_jax.models.description.roles import Role, Roles, kernel_and_bias
from vit_jax.models.fields import Checked, Count


@struct.dataclass
class Detections:
    """Predictions for a fixed number of queries per image, in float32.

    Attributes:
        logits: `(batch, queries, classes + 1)`; the last is "no object".
        boxes: `(batch, queries, 4)`, centre x, centre y, width and height as shares of the image.
        aux: the same of earlier layers of a decoder, first layer first; () if there are none.
    """

    logits: Float[Array, "batch queries logits"]
    boxes: Float[Array, "batch queries 4"]
    aux: tuple["Detections", ...] = ()


class MlpHead(Checked):
    """Layers with ReLU between them, in float32, whatever the rest of the model computes in.

    Parameters: `layers_{i}/{kernel, bias}`. Source: DETR's `MLP` (Carion et al. 2020).
    """

    ROLES: ClassVar[Roles] = {"layers_*": kernel_and_bias(Role.LINEAR)}

    outputs: Count
    width: Count
    depth: Count = 3
    kernel_init: Initializer = nn.initializers.xavier_uniform()

    @nn.compact
    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch outputs"]:
        x = x.astype(jnp.float32)
        for i in range(self.depth):
            last = i == self.depth - 1
            features = self.outputs if last else self.width
            x = nn.Dense(features, kernel_init=self.kernel_init, name=f"layers_{i}")(x)
            x = x if last else jax.nn.relu(x)
        return x


def centred(boxes: Float[Array, "*batch 4"]) -> Float[Array, "*batch 4"]:
    """Return centre x, centre y, width, height of boxes of left, top, right, bottom."""
    low, high = boxes[..., :2], boxes[..., 2:]
    return jnp.concatenate([(low + high) / 2, high - low], axis=-1)


def cornered(boxes: Float[Array, "*batch 4"]) -> Float[Array, "*batch 4"]:
    """Return left, top, right, bottom of boxes of centre x, centre y, width, height."""
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return jnp.concatenate([centre - half, centre + half], axis=-1)
