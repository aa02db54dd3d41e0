"""The neck of DPT: tokens of several blocks become maps, which are fused from coarse to fine.

- Maps of a ResNet need no reassembly: they stand for the finest levels of a hybrid (DPT-Hybrid).
- Reassemble: patches and the readout token become a map, whose sides are 4, 2, 1 and 1/2 times
  those of the grid.
- Fuse: each map is added to what comes from the coarser ones, between two residual units of
  convolutions, and enlarged with corners aligned to the size of the next map; the last one doubles.

Source: Ranftl et al. 2021, "Vision Transformers for Dense Prediction", section 3; isl-org/DPT.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Float

from vit_jax.models.description.roles import Role, Roles, kernel_and_bias
from vit_jax.models.fields import Checked, Choice, Count, Counts
from vit_jax.models.layers.convolutions import conv, torch_linear
from vit_jax.models.layers.resize import Enlarge, resize_map

Readout = Annotated[str, Choice("project", "add", "ignore")]

CONV: Roles = kernel_and_bias(Role.CONVOLUTION)


class Reassemble(Checked):
    """Patches of one block as a map of `width` channels, with sides `scale` times the grid's.

    | `readout` | what becomes of the class token |
    |---|---|
    | `"project"` | joined to every patch, then a dense layer of the tokens' width and GELU |
    | `"add"` | added to every patch |
    | `"ignore"` | nothing |

    Parameters: `readout` with "project", `project`, and `resize` unless the scale is 1.
    """

    ROLES: ClassVar[Roles] = {
        "readout": kernel_and_bias(Role.LINEAR),
        "project": CONV,
        "resize": CONV,
    }

    width: Count
    scale: float  # 1 / 2 or a whole number
    readout: Readout = "project"
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self,
        tokens: Float[Array, "batch tokens channels"],
        grid: tuple[int, int],
        prefix: int,
    ) -> Float[Array, "batch height width features"]:
        x, token = tokens[:, prefix:], tokens[:, :1]
        if self.readout == "add":
            x = x + token
        elif self.readout == "project":
            x = jnp.concatenate([x, jnp.broadcast_to(token, x.shape)], axis=-1)
            dense = nn.Dense(
                token.shape[-1], kernel_init=torch_linear, dtype=self.dtype, name="readout"
            )
            x = jax.nn.gelu(dense(x), approximate=False)
        x = x.reshape(x.shape[0], *grid, -1)
        x = _conv(self.width, 1, "project", self.dtype)(x)
        if self.scale > 1:
            return Enlarge(self.width, int(self.scale), dtype=self.dtype, name="resize")(x)
        if self.scale < 1:
            return _conv(self.width, 3, "resize", self.dtype, stride=round(1 / self.scale))(x)
        return x


class ResidualUnit(Checked):
    """Two 3 x 3 convolutions, each after a ReLU, on a residual branch."""

    ROLES: ClassVar[Roles] = {"conv1": CONV, "conv2": CONV}

    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch height width channels"]:
        y = _conv(x.shape[-1], 3, "conv1", self.dtype)(jax.nn.relu(x))
        return x + _conv(x.shape[-1], 3, "conv2", self.dtype)(jax.nn.relu(y))


class Fuse(Checked):
    """Fusion of a map with that of the coarser ones, of the same size, to a map of another size.

    Parameters: `unit1` of the map, `unit2` of the sum, and `out`. The coarsest map comes alone; its
    `unit1`, which nothing reads, is in the files of all origins, and so it is here.
    """

    ROLES: ClassVar[Roles] = {"unit1": ResidualUnit.ROLES, "unit2": ResidualUnit.ROLES, "out": CONV}

    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch height width channels"],
        finer: Float[Array, "batch height width channels"] | None,
        size: tuple[int, int],
    ) -> Float[Array, "batch new_height new_width channels"]:
        unit1 = ResidualUnit(self.dtype, name="unit1")
        if finer is not None:
            x = x + unit1(finer)
        elif self.is_initializing():
            unit1(x)
        x = ResidualUnit(self.dtype, name="unit2")(x)
        return _conv(x.shape[-1], 1, "out", self.dtype)(resize_map(x, size))


class Neck(Checked):
    """Tokens of several blocks, finest map first, to one map of twice the finest one's sides.

    Parameters: `reassemble_{i}` of tokens, `conv_{i}` to the common width (without bias) and
    `fuse_{i}`, all counted from the first level.
    """

    ROLES: ClassVar[Roles] = {
        "reassemble_*": Reassemble.ROLES,
        "conv_*": CONV,
        "fuse_*": Fuse.ROLES,
    }

    widths: Counts  # channels of the maps
    fusion_width: Count = 256
    readout: Readout = "project"
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self,
        levels: Sequence[Float[Array, "batch ... channels"]],  # tokens, or a map as it is
        grid: tuple[int, int],
        prefix: int,
    ) -> Float[Array, "batch height width features"]:
        maps = []
        for i, (level, width) in enumerate(zip(levels, self.widths, strict=True)):
            if level.ndim == 3:
                scale, name = 2.0 ** (2 - i), f"reassemble_{i}"
                reassemble = Reassemble(width, scale, self.readout, self.dtype, name=name)
                level = reassemble(level, grid, prefix)
            to_common = conv(
                self.fusion_width, 3, init=torch_linear, dtype=self.dtype, name=f"conv_{i}"
            )
            maps.append(to_common(level))
        x = maps[-1]
        for i in reversed(range(len(maps))):
            height, width = maps[i - 1].shape[1:3] if i else (2 * side for side in x.shape[1:3])
            finer = None if i == len(maps) - 1 else maps[i]
            x = Fuse(self.dtype, name=f"fuse_{i}")(x, finer, (height, width))
        return x


def _conv(features: int, kernel: int, name: str, dtype: Dtype, stride: int = 1) -> nn.Conv:
    return conv(features, kernel, stride, bias=True, init=torch_linear, dtype=dtype, name=name)
