"""Classifier of images by texts: its logits are cosines of an image with the vectors of classes."""

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.description.blocks import BlockInfo, Sides, blocks_of_part
from vit_jax.models.description.roles import Role, Roles, kernel_and_bias, model_roles
from vit_jax.models.features import Features


class ZeroShotModel(nn.Module):
    """Image tower whose logits compare the image with one vector for each class.

    Parameters: those of the image tower under `image`, `projection/kernel (width, embed_width)` if
    there is one, `texts (num_classes, embed_width)`, vectors of length 1, `scale`, the logarithm of
    the factor of the cosines, and `bias`, which is 0 for CLIP.

    image: the module of the tower, with `num_classes=0`.
    embed_width: of the vectors. project: whether a matrix brings the pooled features to it.
    """

    image: nn.Module
    num_classes: int
    embed_width: int
    project: bool = True

    @property
    def image_size(self) -> int | tuple[int, int]:
        """Pixels (height, width) of the images."""
        return self.image.image_size

    @property
    def in_channels(self) -> int:
        """Channels of the images."""
        return self.image.in_channels

    @property
    def patch_size(self) -> int | tuple[int, int]:
        """Pixels (height, width) of the patches."""
        return self.image.patch_size

    def setup(self):
        init = nn.initializers.normal()
        self.texts = self.param("texts", init, (self.num_classes, self.embed_width))
        self.scale = self.param("scale", nn.initializers.zeros, ())
        self.bias = self.param("bias", nn.initializers.zeros, ())
        if self.project:
            self.projection = nn.Dense(self.embed_width, use_bias=False)

    def __call__(
        self,
        images: Float[Array, "batch height width channels"],
        *,
        train: bool = False,
        **asked: bool,
    ) -> Float[Array, "batch classes"]:
        """Return logits in float32: scale * cosine + bias."""
        vectors = self.features(images, train=train, **asked).pooled.astype(jnp.float32)
        if self.project:
            vectors = self.projection(vectors)
        squares = jnp.sum(vectors**2, axis=-1, keepdims=True)
        vectors = vectors / jnp.sqrt(jnp.maximum(squares, 1e-16))
        return jnp.exp(self.scale) * vectors @ self.texts.T + self.bias

    def features(
        self,
        images: Float[Array, "batch height width channels"],
        *,
        train: bool = False,
        **asked: bool,
    ) -> Features:
        """Return the features of the image tower."""
        return self.image.features(images, train=train, **asked)

    def roles(self) -> Roles:
        """Return the roles of the parameters, in the order of the forward pass."""
        return {
            "image": model_roles(self.image),
            "projection": kernel_and_bias(Role.LINEAR),
            "texts": Role.HEAD,
            "scale": Role.LAYER_SCALE,
            "bias": Role.BIAS,
        }

    def block_infos(self, image_size: Sides | None = None) -> tuple[BlockInfo, ...]:
        """Return the blocks of the image tower, for images of a size in pixels."""
        return blocks_of_part("image", self.image, image_size)
