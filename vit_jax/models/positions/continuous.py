"""Continuous relative positions: an MLP computes the bias on the logits of every offset.

A table has a row for each offset of one window, and is resized for another. The MLP reads the
offset's coordinates, and serves windows of any size. Between the window of training and a larger
one the logarithm of offsets grows little, so that the MLP extrapolates little (Liu et al. 2022,
"Swin Transformer V2", section 3.3).
"""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.description.roles import Role, Roles, kernel_and_bias
from vit_jax.models.fields import Checked, Count
from vit_jax.models.initializers import INIT_SCHEMES, SchemeName

HIDDEN = 512  # units of the MLP, in all published models
LARGEST_BIAS = 16.0  # which the sigmoid approaches
_RANGE = 8.0  # of the coordinates before the logarithm, for the window of training


def log_coordinates(
    window: tuple[int, int], trained: tuple[int, int] | None = None
) -> Float[np.ndarray, "offsets 2"]:
    """Return the coordinates (down, right) of every offset, in the order of `relative_index`.

    They are `sign(c) log2(1 + |c|) / 3`, from -log2(9) / 3 to log2(9) / 3, where c is the offset by
    the largest one in the window of training, times 8.

    Args:
        window: (height, width) of the windows whose offsets are counted.
        trained: that of training; None: the same.

    Source: Liu et al. 2022, eq. 4, with the factors of the authors' code.
    """
    sides = []
    for side, of_training in zip(window, trained or window, strict=True):
        offsets = np.arange(1 - side, side, dtype=np.float32)
        scaled = _RANGE * offsets / max(of_training - 1, 1)
        sides.append(np.sign(scaled) * np.log2(1 + np.abs(scaled)) / math.log2(_RANGE))
    grid = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1)
    return grid.reshape(-1, 2).astype(np.float32)


class ContinuousBias(Checked):
    """Table of biases `(offsets, heads)` between 0 and 16, by an MLP on coordinates; in float32.

    Parameters: `fc1/{kernel (2, 512), bias}` and `fc2/kernel (512, heads)`.
    """

    ROLES: ClassVar[Roles] = {
        "fc1": kernel_and_bias(Role.BIAS_TABLE),
        "fc2": kernel_and_bias(Role.BIAS_TABLE),
    }

    heads: Count
    window: tuple[int, int]
    pretrained_window: tuple[int, int] | None = None
    init_scheme: SchemeName = "trunc02"

    @nn.compact
    def __call__(self) -> Float[Array, "offsets heads"]:
        kernel_init = INIT_SCHEMES[self.init_scheme].kernel
        x = jnp.asarray(log_coordinates(self.window, self.pretrained_window))
        x = jax.nn.relu(nn.Dense(HIDDEN, kernel_init=kernel_init, name="fc1")(x))
        x = nn.Dense(self.heads, use_bias=False, kernel_init=kernel_init, name="fc2")(x)
        return LARGEST_BIAS * jax.nn.sigmoid(x)
