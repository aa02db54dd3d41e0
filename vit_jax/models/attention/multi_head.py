"""Multi-head self-attention: the function on q, k and v, and the module that projects to them.

`implementations` computes the function: by plain matrix products, by blocks of queries, or by a
fused kernel of the device. Results are equal up to rounding, and logits and softmax statistics are
always float32.
"""

from typing import ClassVar

import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Float

from vit_jax.models.attention import implementations as kernels
from vit_jax.models.attention import types
from vit_jax.models.attention.types import AttentionType, mix_tokens
from vit_jax.models.description.roles import Role, Roles, kernel_and_bias
from vit_jax.models.fields import Checked
from vit_jax.models.initializers import INIT_SCHEMES
from vit_jax.models.layers.linear import LowRank, flat_dot_general
from vit_jax.models.layers.norm import LayerNorm
from vit_jax.models.positions.types import AttentionPositions
from vit_jax.models.validation import check_choice, check_multiple


def attention(
    q: Float[Array, "batch queries heads head_dim"],
    k: Float[Array, "batch keys heads head_dim"],
    v: Float[Array, "batch keys heads head_dim"],
    *,
    bias: Float[Array, "..."] | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: Array | None = None,
    deterministic: bool = True,
    return_weights: bool = False,
    implementation: str = "auto",
) -> (
    Float[Array, "batch queries heads head_dim"]
    | tuple[Float[Array, "batch queries heads head_dim"], Float[Array, "batch heads queries keys"]]
):
    """Scaled dot-product attention, `softmax(q k^T / sqrt(head_dim) + bias) v` for every head.

    Args:
        q, k, v: queries, keys and values; the numbers of queries and keys may differ.
        bias: added to the logits; broadcasts to `(batch, heads, queries, keys)`. -inf masks a key;
            a query without unmasked keys gives zeros.
        dropout_rate: probability of dropping a weight, unless `deterministic`.
        dropout_rng: the key for dropout; needed only with dropout.
        return_weights: also return the float32 weights, before dropout; each row sums to 1.
        implementation: "xla", "chunked", "cudnn" or "pallas" (see `implementations`), or "auto",
            which chooses one by device, type and shapes, and supports every call.

    Returns:
        The result in the type of `v`; with `return_weights`, a pair with the weights.

    Raises:
        ValueError: dropout is on without a `dropout_rng`, or the implementation does not support
            the call; the message has the reason.

    Source: Vaswani et al. 2017, section 3.2.1.
    """
    check_choice("attention", "implementation", implementation, ("auto", *kernels.IMPLEMENTATIONS))
    if deterministic:
        dropout_rate = 0.0
    if dropout_rate > 0.0 and dropout_rng is None:
        raise ValueError(
            f"attention dropout of {dropout_rate} needs a `dropout_rng`; pass one, "
            "or set `deterministic=True`."
        )
    call = kernels.AttentionCall(
        queries=q.shape[1],
        keys=k.shape[1],
        head_dim=q.shape[3],
        dtype=q.dtype.name,
        bias=bias is not None,
        dropout=dropout_rate > 0.0,
        weights=return_weights,
        **kernels.describe_device(),
    )
    if implementation == "auto":
        implementation, _ = kernels.choose_implementation(call)
    elif obstacle := kernels.find_obstacle(implementation, call):
        raise ValueError(
            f"attention by {implementation!r} is not possible here: {obstacle}; use 'auto', or "
            "'chunked' to save memory."
        )

    if implementation == "cudnn":
        return kernels.cudnn_attention(q, k, v)
    if implementation == "pallas":
        return kernels.pallas_attention(q, k, v, call.backend)
    if bias is not None:
        bias = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
    if implementation == "chunked":
        return kernels.chunked_attention(q, k, v, bias, dropout_rate, dropout_rng)
    out, weights = kernels.xla_attention(q, k, v, bias, dropout_rate, dropout_rng, return_weights)
    return (out, weights) if return_weights else out


class Attention(Checked):
    """Multi-head attention of tokens to themselves, or to a `context` (ViT paper, appendix A).

    Parameters: `qkv/{kernel (width, 3, heads, head_dim), bias (3, heads, head_dim)}`,
    `out/{kernel (heads, head_dim, width), bias (width,)}`, and with `qk_norm` a LayerNorm over
    head_dim for queries and for keys, `q_norm` and `k_norm` (ViT-22B, Dehghani et al. 2023).

    The weights `(batch, heads, queries, keys)` are sown as `intermediates/.../weights` when the
    call asks for them with `attention_weights=True`, and are not computed otherwise; such a call
    uses `"xla"`, the only implementation with weights, whatever `implementation` is.

    `positions` "relative", with a table `relative_bias`, and "rotary" are for self-attention.
    Queries and keys are normed before the rotation.

    Types other than "softmax" take no context; `types` has their parameters.
    """

    ROLES: ClassVar[Roles] = {
        "qkv": kernel_and_bias(Role.QKV, Role.QKV_BIAS),
        "qkv_lora": LowRank.ROLES,
        "q_norm": LayerNorm.ROLES,
        "k_norm": LayerNorm.ROLES,
        "relative_bias": Role.BIAS_TABLE,
        **types.ROLES,
        "out": kernel_and_bias(Role.ATTENTION_OUT),
    }

    heads: int
    head_dim: int | None = None  # None: width / heads
    qkv_bias: bool = True
    qk_norm: bool = False
    attention_dropout: float = 0.0  # on the weights, after the softmax
    projection_dropout: float = 0.0  # on the result, after `out`
    norm_eps: float = 1e-6
    init_scheme: str = "vit"
    dtype: Dtype = jnp.float32
    implementation: str = "auto"  # of `attention`
    lora_rank: int = 0  # of the low-rank updates of q, k and v; for self-attention
    kind: AttentionType = AttentionType()
    positions: AttentionPositions = AttentionPositions()

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch tokens width"],
        context: Float[Array, "batch keys width"] | None = None,
        *,
        train: bool = False,
        attention_weights: bool = False,
        grid: tuple[int, int] | None = None,  # of the patches, the last tokens
    ) -> Float[Array, "batch tokens width"]:
        if context is not None and self.kind.name != "softmax":
            raise ValueError(
                f"Attention: type {self.kind.name!r} supports only self-attention; for a context "
                "use 'softmax'."
            )
        width = x.shape[-1]
        if self.head_dim is None:
            check_multiple("Attention", "width", width, "heads", self.heads)
        head_dim = self.head_dim or width // self.heads
        q, k, v = QueryKeyValue(
            self.heads, head_dim, self.qkv_bias, self.init_scheme, self.dtype, name="qkv"
        )(x, context)
        if self.lora_rank and context is None:
            shape = (3, self.heads, head_dim)
            added = LowRank(self.lora_rank, shape, self.dtype, name="qkv_lora")(x)
            q, k, v = (one + added[:, :, i] for i, one in enumerate((q, k, v)))
        if self.qk_norm:
            q = LayerNorm(epsilon=self.norm_eps, dtype=self.dtype, name="q_norm")(q)
            k = LayerNorm(epsilon=self.norm_eps, dtype=self.dtype, name="k_norm")(k)

        scheme = INIT_SCHEMES[self.init_scheme]
        bias = None
        if context is None:
            q, k, bias = self.positions.enter(q, k, grid, self.param, scheme.positions)

        drops = train and self.attention_dropout > 0.0
        dropout = {
            "dropout_rate": self.attention_dropout,
            "dropout_rng": self.make_rng("dropout") if drops else None,
        }
        if self.kind.name == "softmax":
            mixed = attention(
                q,
                k,
                v,
                bias=bias,
                **dropout,
                deterministic=not train,
                return_weights=attention_weights,
                implementation="xla" if attention_weights else self.implementation,
            )
            mixed, weights = mixed if attention_weights else (mixed, None)
        else:
            mixed, weights = mix_tokens(
                self.kind,
                q,
                k,
                v,
                parameter=self.param,
                grid=grid,
                bias=bias,
                **dropout,
                return_weights=attention_weights,
            )
        if attention_weights:
            if self.has_variable("perturbations", "weights"):  # for gradients by the weights
                weights = self.perturb("weights", weights)
                mixed = jnp.einsum("bhqk,bkhd->bqhd", weights.astype(v.dtype), v)
            self.sow("intermediates", "weights", weights)
        out = nn.DenseGeneral(
            width,
            axis=(-2, -1),
            kernel_init=scheme.kernel,  # sees (heads * head_dim, width)
            dtype=self.dtype,
            dot_general=flat_dot_general,
            name="out",
        )(mixed)
        return nn.Dropout(self.projection_dropout)(out, deterministic=not train)


class QueryKeyValue(Checked):
    """Projection of tokens to queries, keys and values with one kernel.

    Keys and values come from the `context` if there is one, else from the tokens themselves.
    Returns three arrays `(batch, tokens or keys, heads, head_dim)`.
    """

    heads: int
    head_dim: int
    use_bias: bool = True
    init_scheme: str = "vit"
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch tokens width"],
        context: Float[Array, "batch keys width"] | None = None,
    ) -> tuple[Array, Array, Array]:
        shape = (3, self.heads, self.head_dim)
        kernel = self.param("kernel", INIT_SCHEMES[self.init_scheme].qkv, (x.shape[-1], *shape))
        bias = self.param("bias", nn.initializers.zeros_init(), shape) if self.use_bias else None

        def project(tokens: Array, which: slice) -> list[Array]:
            """Compute one product for neighbours among q, k, v, then split it."""
            tokens, weights = tokens.astype(self.dtype), kernel[:, which].astype(self.dtype)
            projected = flat_dot_general(tokens, weights)
            if bias is not None:
                projected = projected + bias[which].astype(self.dtype)
            return [projected[:, :, i] for i in range(projected.shape[2])]

        if context is None:
            q, k, v = project(x, slice(0, 3))
        else:
            [q], [k, v] = project(x, slice(0, 1)), project(context, slice(1, 3))
        return q, k, v
