"""The simple feature pyramid: maps of four strides, all from the last map of a plain ViT.

Source: Li et al. 2022, "Exploring Plain Vision Transformer Backbones for Object Detection", section
3; detectron2's `SimpleFeaturePyramid`.
"""

from typing import ClassVar

import jax
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.description.roles import Role, Roles, kernel_and_bias
from vit_jax.models.fields import Checked, Count
from vit_jax.models.layers.convolutions import conv, torch_linear
from vit_jax.models.layers.norm import LayerNorm
from vit_jax.models.layers.resize import Enlarge

LEVELS = 4
_NORM_EPS = 1e-6  # detectron2's, of all norms of the pyramid
_CONV = kernel_and_bias(Role.CONVOLUTION)


class Level(Checked):
    """A map with sides 4, 2, 1 or 1/2 times those of the one it is made of.

    Transposed convolutions enlarge it, each halving the channels, with a norm and GELU between two;
    max pooling shrinks it. Then come convolutions of 1 x 1 and 3 x 3, each with a norm.

    Parameters: `enlarge{1, 2}` and `enlarge_norm` as far as they are needed, `lateral`,
    `lateral_norm`, `output` and `output_norm`.
    """

    ROLES: ClassVar[Roles] = {
        "enlarge1": Enlarge.ROLES,
        "enlarge_norm": LayerNorm.ROLES,
        "enlarge2": Enlarge.ROLES,
        "lateral": _CONV,
        "lateral_norm": LayerNorm.ROLES,
        "output": _CONV,
        "output_norm": LayerNorm.ROLES,
    }

    width: Count
    scale: float
    dtype: str = "float32"

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch new_height new_width features"]:
        channels = x.shape[-1]
        if self.scale < 1:
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        if self.scale > 1:
            x = Enlarge(channels // 2, dtype=self.dtype, name="enlarge1")(x)
        if self.scale > 2:
            x = jax.nn.gelu(self._norm("enlarge_norm")(x), approximate=False)
            x = Enlarge(channels // 4, dtype=self.dtype, name="enlarge2")(x)
        for name, kernel in (("lateral", 1), ("output", 3)):
            x = conv(self.width, kernel, init=torch_linear, dtype=self.dtype, name=name)(x)
            x = self._norm(f"{name}_norm")(x)
        return x

    def _norm(self, name: str) -> LayerNorm:
        return LayerNorm(_NORM_EPS, self.dtype, name=name)


class Pyramid(Checked):
    """Maps of `width` channels, finest first; parameters `levels_{i}`."""

    ROLES: ClassVar[Roles] = {"levels_*": Level.ROLES}

    width: Count
    dtype: str = "float32"

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> tuple[Float[Array, "batch level_height level_width features"], ...]:
        return tuple(
            Level(self.width, 2.0 ** (2 - i), self.dtype, name=f"levels_{i}")(x)
            for i in range(LEVELS)
        )
