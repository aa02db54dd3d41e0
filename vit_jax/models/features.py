"""Outputs of networks: features, logits of pooled features, and those of a distilled model."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Float, Int


@struct.dataclass
class Features:
    """Features of a batch of images, before any classifier.

    Attributes:
        tokens: `(batch, prefix + height * width, width)`, prefix tokens, then patches in raster
            order; after the final norm, unless the model has the norm after pooling. Of clips
            `(batch, prefix + frames * height * width, width)`, one frame after another.
        pooled: `(batch, width)`; with `pool="none"` all tokens, `(batch, tokens, width)`. In a
            distilled model it is the class token; the distillation token is `tokens[:, 1]`.
        grid: `(height, width)` of the image in patches.
        prefix: number of tokens before the patches (class, distillation, registers).
        frames: number of time steps of a clip whose patches are in `tokens`; 1 for images.
        stages: for pyramids, one `(batch, height, width, channels)` per stage; None for a ViT.
        source: of a ViT with fewer tokens than patches: for each of prefix and patches in raster
            order its place among `tokens`, -1 if it was dropped; None if all are there.
        blocks: of a ViT, the outputs `(batch, prefix + height * width, width)` of the blocks that
            were asked for, before the final norm; None if none were.
    """

    tokens: Float[Array, "batch tokens width"]
    pooled: Float[Array, "batch width"]
    grid: tuple[int, int] = struct.field(pytree_node=False)
    prefix: int = struct.field(pytree_node=False, default=0)
    stages: tuple[Float[Array, "batch height width channels"], ...] | None = None
    blocks: tuple[Float[Array, "batch tokens width"], ...] | None = None
    frames: int = struct.field(pytree_node=False, default=1)
    source: Int[Array, "batch entered"] | None = None


def features_of_map(
    x: Float[Array, "batch height width channels"],
    pooled: Float[Array, "batch channels"],
    stages: Sequence[Float[Array, "batch h w c"]],
) -> Features:
    """Return the features of a network that ends in a map, whose pixels are the tokens."""
    batch, height, width, channels = x.shape
    tokens = x.reshape(batch, height * width, channels)
    return Features(tokens, pooled, (height, width), stages=tuple(stages))


class PooledClassifier(nn.Module):
    """Base of networks whose logits are a dense layer of the pooled features.

    A subclass has the field `num_classes`, the method `features(images, train=...)`, and, if there
    are classes, the layer `head`, which computes in float32 whatever the rest uses.
    """

    def __call__(
        self, images: Float[Array, "batch height width channels"], *, train: bool = False
    ) -> Float[Array, "batch classes"]:
        """Return logits in float32; with `num_classes=0` the pooled features."""
        x = self.features(images, train=train).pooled.astype(jnp.float32)
        return self.head(x) if self.num_classes else x


class AttentionClassifier(PooledClassifier):
    """The same of networks whose `features` may sow weights of attention."""

    def __call__(
        self,
        images: Float[Array, "batch height width channels"],
        *,
        train: bool = False,
        attention_weights: bool = False,
    ) -> Float[Array, "batch classes"]:
        """Return logits in float32; with `num_classes=0` the pooled features."""
        features = self.features(images, train=train, attention_weights=attention_weights)
        x = features.pooled.astype(jnp.float32)
        return self.head(x) if self.num_classes else x


class DistilledLogits(NamedTuple):
    """Logits of the two heads of a distilled model in training (DeiT, Touvron et al. 2021).

    Attributes:
        head: float32 `(batch, classes)` of the class token, trained on labels.
        head_dist: the same of the distillation token, trained on a teacher.
    """

    head: Float[Array, "batch classes"]
    head_dist: Float[Array, "batch classes"]

    def mean(self) -> Float[Array, "batch classes"]:
        """Return the output: the mean of logits, not of probabilities (DeiT's `models.py`)."""

        return (self.head + self.head_dist) / 2
