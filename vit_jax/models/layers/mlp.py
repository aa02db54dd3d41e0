"""The per-token network of a block, and its activations.

Three different functions are called "GELU" by the checkpoints of this world; each has its own name
here.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Float

from vit_jax.models.description.roles import Role, Roles, kernel_and_bias
from vit_jax.models.fields import Checked
from vit_jax.models.initializers import INIT_SCHEMES
from vit_jax.models.layers.linear import LowRank, flat_dot_general


def exact_gelu(x: Array) -> Array:
    """`x` times the normal distribution's cumulative probability (Hendrycks & Gimpel 2016).

    By erf, as in torch. `jax.nn.gelu(approximate=False)` uses erfc, the same function, which XLA
    computes by branches: on a CPU it takes two and a half times as long. The error far below 0,
    where 1 + erf cancels, is less than 1e-6 in float32; lower types are computed in float32.
    """
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return (0.5 * wide * (1 + jax.lax.erf(wide * math.sqrt(0.5)))).astype(x.dtype)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": exact_gelu,  # torch, timm
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),  # Google's JAX code
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),  # OpenAI's CLIP
    "relu": jax.nn.relu,
}


class Mlp(Checked):
    """MLP of a block: `fc1`, activation, dropout, `fc2`, dropout; shape kept.

    With `kind="swiglu"` (Shazeer 2020, "GLU Variants Improve Transformer"; DINOv2's giant), `fc1`
    has twice the hidden width, `[gate, value]` along its last axis, and `silu(gate) * value`
    replaces the activation.
    """

    ROLES: ClassVar[Roles] = {
        "fc1": kernel_and_bias(Role.MLP_IN, Role.MLP_IN_BIAS),
        "fc1_lora": LowRank.ROLES,
        "fc2": kernel_and_bias(Role.MLP_OUT),
        "fc2_lora": LowRank.ROLES,
    }

    hidden: int
    activation: str = "gelu"
    dropout: float = 0.0
    init_scheme: str = "vit"
    dtype: Dtype = jnp.float32
    kind: str = "plain"
    lora_rank: int = 0

    @nn.compact
    def __call__(
        self, x: Float[Array, "*batch width"], *, train: bool = False
    ) -> Float[Array, "*batch width"]:
        scheme = INIT_SCHEMES[self.init_scheme]

        def dense(x: Array, features: int, name: str, kernel_init: Any = scheme.kernel) -> Array:
            layer = nn.Dense(
                features,
                kernel_init=kernel_init,
                bias_init=scheme.mlp_bias,
                dtype=self.dtype,
                dot_general=flat_dot_general,
                name=name,
            )
            if not self.lora_rank:
                return layer(x)
            low_rank = LowRank(self.lora_rank, (features,), self.dtype, name=f"{name}_lora")
            return layer(x) + low_rank(x)

        if self.kind == "swiglu":
            gate, value = jnp.split(dense(x, 2 * self.hidden, "fc1", scheme.gated), 2, axis=-1)
            hidden = jax.nn.silu(gate) * value
        else:
            hidden = ACTIVATIONS[self.activation](dense(x, self.hidden, "fc1"))
        hidden = nn.Dropout(self.dropout)(hidden, deterministic=not train)
        out = dense(hidden, x.shape[-1], "fc2")
        return nn.Dropout(self.dropout)(out, deterministic=not train)
