"""The per-token network of a block, and its activations.

Three different functions are called "GELU" by the checkpoints of this world; each has its own name
here.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Float

from vit_jax.models.description.roles import Role, Roles, kernel_and_bias
from vit_jax.models.fields import Checked, Choice, Depth, Hidden, Positive
from vit_jax.models.initializers import INIT_SCHEMES, SchemeName
from vit_jax.models.layers.linear import Dense, LowRank, Rank
from vit_jax.models.layers.norm import LayerNorm, NormType, make_norm


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
    "silu": jax.nn.silu,
}
Activation = Annotated[str, Choice(*ACTIVATIONS)]
MlpKind = Annotated[str, Choice("plain", "swiglu")]


class Mlp(Checked):
    """MLP of a block: `fc1`, activation, dropout, `fc2`, dropout; shape kept.

    With `mlp="swiglu"` (Shazeer 2020, "GLU Variants Improve Transformer"; DINOv2's giant), `fc1`
    has twice the hidden width, `[gate, value]` along its last axis, and `silu(gate) * value`
    replaces the activation. With `mlp_norm` the hidden layer is normed before `fc2` (the sub-norm
    of Wang et al. 2022, "Foundation Transformers"; EVA-02).
    """

    ROLES: ClassVar[Roles] = {
        "fc1": kernel_and_bias(Role.MLP_IN, Role.MLP_IN_BIAS),
        "fc1_lora": LowRank.ROLES,
        "norm": LayerNorm.ROLES,
        "fc2": kernel_and_bias(Role.MLP_OUT),
        "fc2_lora": LowRank.ROLES,
    }

    mlp_width: Hidden  # of the hidden layer
    activation: Activation = "gelu"
    mlp_dropout: float = 0.0
    init_scheme: SchemeName = "vit"
    dtype: Dtype = jnp.float32
    mlp: MlpKind = "plain"
    lora_rank: Rank = 0
    linear_bias: bool = True
    mlp_norm: bool = False
    norm_type: NormType = "layer"  # of that norm
    norm_eps: Positive = 1e-6
    depth: Depth | None = None  # of the model, for schemes that initialise by it

    @nn.compact
    def __call__(
        self, x: Float[Array, "*batch width"], *, train: bool = False
    ) -> Float[Array, "*batch width"]:
        scheme = INIT_SCHEMES[self.init_scheme]

        def dense(x: Array, features: int, name: str, kernel_init: Any) -> Array:
            layer = Dense(
                features,
                use_bias=self.linear_bias,
                kernel_init=kernel_init,
                bias_init=scheme.mlp_bias,
                dtype=self.dtype,
                name=name,
            )
            if not self.lora_rank:
                return layer(x)
            low_rank = LowRank(self.lora_rank, (features,), self.dtype, name=f"{name}_lora")
            return layer(x) + low_rank(x)

        if self.mlp == "swiglu":
            gate, value = jnp.split(dense(x, 2 * self.mlp_width, "fc1", scheme.gated), 2, axis=-1)
            hidden = jax.nn.silu(gate) * value
        else:
            hidden = self.activate(dense(x, self.mlp_width, "fc1", scheme.mlp_in))
        if self.mlp_norm:
            hidden = make_norm(self, name="norm")(hidden)
        hidden = nn.Dropout(self.mlp_dropout)(hidden, deterministic=not train)
        out = dense(hidden, x.shape[-1], "fc2", scheme.branch_end(self.depth))
        return nn.Dropout(self.mlp_dropout)(out, deterministic=not train)

    @nn.nowrap
    def activate(self, hidden: Float[Array, "*batch hidden"]) -> Float[Array, "*batch hidden"]:
        """Return the activations of the hidden layer; part of `__call__`."""
        return ACTIVATIONS[self.activation](hidden)
