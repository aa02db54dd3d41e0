"""Multi-head self-attention: the function on q, k and v, and the module that projects to them.

`implementations` computes the function: by plain matrix products, by blocks of queries, or by a
fused kernel of the device. Results are equal up to rounding, and logits and softmax statistics are
always float32.
"""

from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Bool, Float

from vit_jax.models.attention import implementations as kernels
from vit_jax.models.attention import types
from vit_jax.models.attention.types import AttentionType, mix_tokens
from vit_jax.models.description.roles import Role, Roles, kernel_and_bias
from vit_jax.models.fields import Checked, Choice, Count, Depth, Positive, check_choice
from vit_jax.models.initializers import INIT_SCHEMES, SchemeName
from vit_jax.models.layers.linear import Dense, LowRank, Rank, flat_dot_general
from vit_jax.models.layers.norm import LayerNorm, NormType, make_norm
from vit_jax.models.positions.types import AttentionPositions
from vit_jax.models.validation import check_multiple

QkvBias = Annotated[bool | str, Choice(True, False, "qv")]
QkNorm = Annotated[bool | str, Choice(True, False, "layer", "rms")]


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
    implementation = kernels.portable_choice(implementation, call)
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
    `out/{kernel (heads, head_dim, width), bias (width,)}`, and with `qk_norm` a norm over head_dim
    for queries and for keys, `q_norm` and `k_norm` (ViT-22B, Dehghani et al. 2023), of the type
    `norm_type` or the one named. With `qkv_bias="qv"` keys have no bias, as in BEiT (its softmax
    does not see it), and the bias is `(2, heads, head_dim)`. With `attention_norm` the heads' joint
    result is normed before `out` (EVA-02's CLIP; Wang et al. 2022, "Foundation Transformers").

    With `learned_temperature` the logits of a head are multiplied by a learned number, `temperature
    (heads,)`, 1 at first (Lee et al. 2021, "Vision Transformer for Small-Size Datasets", section
    3.2, without its mask of the diagonal).

    The weights `(batch, heads, queries, keys)` are sown as `intermediates/.../weights` when the
    call asks for them with `attention_weights=True`, and are not computed otherwise; such a call
    uses `"xla"`, the only implementation with weights, whatever `attention_impl` is.

    `positions` "relative", with a table `relative_bias`, and "rotary" are for self-attention.
    Queries and keys are normed before the rotation.

    With `causal` a token attends to itself and to those before it.

    Vectors in `query_positions` and `key_positions` are added to what queries and keys are made
    from, and not to values (DETR, Carion et al. 2020, appendix A.3).

    Types other than "softmax" take no context and no mask; `types` has their parameters.
    """

    ROLES: ClassVar[Roles] = {
        "qkv": kernel_and_bias(Role.QKV, Role.QKV_BIAS),
        "qkv_lora": LowRank.ROLES,
        "q_norm": LayerNorm.ROLES,
        "k_norm": LayerNorm.ROLES,
        "relative_bias": Role.BIAS_TABLE,
        **types.ROLES,
        "norm": LayerNorm.ROLES,
        "temperature": Role.LAYER_SCALE,
        "out": kernel_and_bias(Role.ATTENTION_OUT),
    }

    heads: Count
    head_dim: Count | None = None  # None: width / heads
    qkv_bias: QkvBias = True
    qk_norm: QkNorm = False
    attention_dropout: float = 0.0  # on the weights, after the softmax
    projection_dropout: float = 0.0  # on the result, after `out`
    norm_type: NormType = "layer"
    norm_eps: Positive = 1e-6
    init_scheme: SchemeName = "vit"
    dtype: Dtype = jnp.float32
    attention_impl: kernels.Implementation = "auto"
    lora_rank: Rank = 0  # of the low-rank updates of q, k and v; for self-attention
    linear_bias: bool = True  # of `out`
    attention_norm: bool = False
    learned_temperature: bool = False
    causal: bool = False  # for self-attention
    depth: Depth | None = None  # of the model, for schemes that initialise by it
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
        key_mask: Bool[Array, "batch keys"] | None = None,  # False: padding, which none attends to
        query_positions: Float[Array, "#batch tokens width"] | None = None,
        key_positions: Float[Array, "#batch keys width"] | None = None,
        key_sizes: Float[Array, "batch keys"] | None = None,  # times that a key counts
        projected: dict[str, Array] | None = None,  # gets the queries `q` and the keys `k`
    ) -> Float[Array, "batch tokens width"]:
        if self.kind.name != "softmax" and not (context is None and key_mask is None):
            raise ValueError(
                f"Attention: type {self.kind.name!r} supports only self-attention of whole "
                "images; for a context or a key_mask use 'softmax'."
            )
        if self.causal and not (context is None and self.kind.name == "softmax"):
            raise ValueError(
                "Attention: causal=True is for self-attention of the type 'softmax'; got "
                f"{'a context' if context is not None else f'the type {self.kind.name!r}'}."
            )
        width = x.shape[-1]
        if self.head_dim is None:
            check_multiple("Attention", "width", width, "heads", self.heads)
        head_dim = self.head_dim or width // self.heads
        q, k, v = QueryKeyValue(
            self.heads, head_dim, self.qkv_bias, self.init_scheme, self.dtype, name="qkv"
        )(x, context, query_positions, key_positions)
        if self.lora_rank and context is None:
            shape = (3, self.heads, head_dim)
            added = LowRank(self.lora_rank, shape, self.dtype, name="qkv_lora")(x)
            q, k, v = (one + added[:, :, i] for i, one in enumerate((q, k, v)))
        if self.qk_norm:
            norm_type = self.norm_type if self.qk_norm is True else self.qk_norm
            q = make_norm(self, "q_norm", norm_type)(q)
            k = make_norm(self, "k_norm", norm_type)(k)

        if self.learned_temperature:
            temperature = self.param("temperature", nn.initializers.ones_init(), (self.heads,))
            q = q * temperature[:, None].astype(q.dtype)

        scheme = INIT_SCHEMES[self.init_scheme]
        bias = None
        if context is None:
            q, k, bias = self.positions.enter(q, k, grid, self.param, scheme.positions)
        if key_mask is not None:
            bias = jnp.where(key_mask[:, None, None], 0.0 if bias is None else bias, -jnp.inf)
        if key_sizes is not None:
            bias = jnp.log(key_sizes)[:, None, None] + (0.0 if bias is None else bias)
        if projected is not None:
            projected |= {"q": q, "k": k}
        if self.causal:
            seen = jnp.tri(x.shape[1], dtype=bool)  # (queries, keys)
            bias = jnp.where(seen, 0.0 if bias is None else bias, -jnp.inf)

        drops = train and self.attention_dropout > 0.0
        dropout = {
            "dropout_rate": self.attention_dropout,
            "dropout_rng": self.make_rng("dropout") if drops else None,
        }
        reads_weights = attention_weights or self.positions.adds_to_values
        if self.kind.name == "softmax":
            mixed = attention(
                q,
                k,
                v,
                bias=bias,
                **dropout,
                deterministic=not train,
                return_weights=reads_weights,
                implementation="xla" if reads_weights else self.attention_impl,
            )
            mixed, weights = mixed if reads_weights else (mixed, None)
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
        if self.positions.adds_to_values:
            entered = grid, self.param, scheme.positions
            mixed = mixed + self.positions.added_values(weights, v, *entered)
        if self.attention_norm:
            joint = mixed.reshape(*mixed.shape[:2], -1)
            mixed = make_norm(self, name="norm")(joint).reshape(mixed.shape)
        out = Dense(
            width,
            axes=2,
            use_bias=self.linear_bias,
            kernel_init=scheme.branch_end(self.depth),  # sees (heads * head_dim, width)
            dtype=self.dtype,
            name="out",
        )(mixed)
        return nn.Dropout(self.projection_dropout)(out, deterministic=not train)


class QueryKeyValue(Checked):
    """Projection of tokens to queries, keys and values with one kernel.

    Keys and values come from the `context` if there is one, else from the tokens themselves.
    Positions, of both or of neither, are added to what queries and keys come from. Returns three
    arrays `(batch, tokens or keys, heads, head_dim)`.
    """

    heads: Count
    head_dim: Count
    use_bias: QkvBias = True
    init_scheme: SchemeName = "vit"
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch tokens width"],
        context: Float[Array, "batch keys width"] | None = None,
        query_positions: Float[Array, "#batch tokens width"] | None = None,
        key_positions: Float[Array, "#batch keys width"] | None = None,
    ) -> tuple[Array, Array, Array]:
        shape = (3, self.heads, self.head_dim)
        init = INIT_SCHEMES[self.init_scheme].qkv
        kernel = self.param("kernel", init, (x.shape[-1], *shape), unbox=False)
        bias = None
        if self.use_bias:
            rows = 2 if self.use_bias == "qv" else 3
            bias = self.param("bias", nn.initializers.zeros_init(), (rows, *shape[1:]))
            if rows == 2:
                bias = jnp.stack([bias[0], jnp.zeros_like(bias[0]), bias[1]])

        def project(tokens: Array, which: slice) -> list[Array]:
            """Compute one product for neighbours among q, k, v, then split it."""
            weights = jax.tree.map(lambda part: part[:, which], kernel)  # it may be quantized
            projected = flat_dot_general(tokens, weights, dtype=self.dtype)
            if bias is not None:
                projected = projected + bias[which].astype(self.dtype)
            return [projected[:, :, i] for i in range(projected.shape[2])]

        if query_positions is not None:
            context = x if context is None else context
            of_keys = context + key_positions.astype(context.dtype)
            [q] = project(x + query_positions.astype(x.dtype), slice(0, 1))
            [k], [v] = project(of_keys, slice(1, 2)), project(context, slice(2, 3))
        elif context is None:
            q, k, v = project(x, slice(0, 3))
        else:
            [q], [k, v] = project(x, slice(0, 1)), project(context, slice(1, 3))
        return q, k, v
