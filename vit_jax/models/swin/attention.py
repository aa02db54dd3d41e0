"""Attention within windows of a map, and the merging of patches, of Swin and Swin V2.

- The windows come from the map that the block sees, so that any size goes. The table of relative
  positions belongs to the window that the model was built with; a smaller map uses its middle.
"""

import math
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Float

from vit_jax.models.attention.multi_head import Attention, QkvBias, QueryKeyValue, attention
from vit_jax.models.attention.windows import fit_windows, relative_index
from vit_jax.models.description.roles import Role, Roles, kernel_and_bias
from vit_jax.models.fields import Checked, Choice, Count, Positive
from vit_jax.models.initializers import INIT_SCHEMES, SchemeName
from vit_jax.models.layers.linear import Dense
from vit_jax.models.layers.norm import LayerNorm
from vit_jax.models.positions.continuous import ContinuousBias

WindowNormOrder = Annotated[str, Choice("pre", "branch")]
PositionBias = Annotated[str, Choice("table", "continuous")]
_LARGEST_SCALE = 100.0  # of the logits of cosine attention


class WindowAttention(Checked):
    """Multi-head attention within windows of a map, with a learned bias for every offset (eq. 4).

    Parameters: `qkv` and `out` as of `Attention`, and `relative_bias ((2h - 1) * (2w - 1), heads)`
    for a window of h x w, which is added to the logits after they are scaled. The weights of every
    window, `(batch * windows, heads, tokens, tokens)`, are sown as `intermediates/.../weights` on
    request; `windows.query_map` puts them back on the map.

    Swin V2 (Liu et al. 2022, section 3) differs in two of the fields. With `cosine` logits are the
    cosines of queries and keys, times the exponential of `logit_scale (heads,)` or 100 at most.
    With `position_bias="continuous"` an MLP, `relative_mlp`, computes the bias.

    `shifted`: the windows are those of every second block of a stage.
    """

    ROLES: ClassVar[Roles] = {
        **Attention.ROLES,
        "logit_scale": Role.LAYER_SCALE,
        "relative_mlp": ContinuousBias.ROLES,
    }

    heads: Count
    window: tuple[int, int]
    shifted: bool = False
    cosine: bool = False
    position_bias: PositionBias = "table"
    pretrained_window: tuple[int, int] | None = None  # of "continuous"; None: `window`
    qkv_bias: QkvBias = True
    attention_dropout: float = 0.0
    projection_dropout: float = 0.0
    init_scheme: SchemeName = "trunc02"
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch height width channels"],
        context: None = None,  # unused, as grid and key_mask: the map has its grid itself
        *,
        train: bool = False,
        attention_weights: bool = False,
        grid: None = None,
        key_mask: None = None,
    ) -> Float[Array, "batch height width channels"]:
        scheme, width = INIT_SCHEMES[self.init_scheme], x.shape[-1]
        windows = fit_windows(x.shape[1:3], self.window, shifted=self.shifted)
        x = windows.partition(x)
        q, k, v = QueryKeyValue(
            self.heads, width // self.heads, self.qkv_bias, self.init_scheme, self.dtype, name="qkv"
        )(x)
        if self.cosine:
            initial = nn.initializers.constant(math.log(10))
            q, k = cosine_logits(q, k, self.param("logit_scale", initial, (self.heads,)))
        bias = self._bias_table()[relative_index(windows.window, self.window)]
        bias = bias.transpose(2, 0, 1)[None]  # (1, heads, tokens, tokens)
        mask = windows.mask()
        if mask is not None:
            bias = jnp.where(mask[:, None], bias, -jnp.inf)
            bias = jnp.tile(bias, (x.shape[0] // len(mask), 1, 1, 1))

        drops = train and self.attention_dropout > 0.0
        mixed = attention(
            q,
            k,
            v,
            bias=bias,
            dropout_rate=self.attention_dropout,
            dropout_rng=self.make_rng("dropout") if drops else None,
            deterministic=not train,
            return_weights=attention_weights,
        )
        if attention_weights:
            mixed, weights = mixed
            self.sow("intermediates", "weights", weights)
        out = Dense(
            width,
            axes=2,
            kernel_init=scheme.kernel,
            dtype=self.dtype,
            name="out",
        )(mixed)
        return windows.put_back(nn.Dropout(self.projection_dropout)(out, deterministic=not train))

    def _bias_table(self) -> Float[Array, "offsets heads"]:
        if self.position_bias == "continuous":
            return ContinuousBias(
                self.heads,
                self.window,
                self.pretrained_window,
                self.init_scheme,
                name="relative_mlp",
            )()
        height, width = self.window
        shape = ((2 * height - 1) * (2 * width - 1), self.heads)
        return self.param("relative_bias", INIT_SCHEMES[self.init_scheme].positions, shape)


def cosine_logits(
    q: Float[Array, "batch tokens heads head_dim"],
    k: Float[Array, "batch tokens heads head_dim"],
    logit_scale: Float[Array, " heads"],
) -> tuple[
    Float[Array, "batch tokens heads head_dim"], Float[Array, "batch tokens heads head_dim"]
]:
    """Return queries and keys whose scaled products are scaled cosines; computed in float32.

    Source: Liu et al. 2022, eq. 2; there the scale is `1 / tau`, and tau is at least 0.01.
    """

    def unit(x: Array) -> Array:
        wide = x.astype(jnp.float32)
        # A vector of zeros, as of padding without a bias, stays one and has a finite gradient.
        square = jnp.maximum(jnp.square(wide).sum(axis=-1, keepdims=True), 1e-24)
        return wide * jax.lax.rsqrt(square)

    scale = jnp.exp(jnp.minimum(logit_scale, math.log(_LARGEST_SCALE)))
    scale = scale * math.sqrt(q.shape[-1])  # `attention` divides by it
    return (unit(q) * scale[:, None]).astype(q.dtype), unit(k).astype(k.dtype)


class PatchMerging(Checked):
    """Four neighbours become one token of twice the width (Swin paper, section 3.1).

    Odd sides are padded with zeros at the bottom and on the right. The neighbours stand behind each
    other column by column, as in the authors' code; parameters `norm` and `reduction/kernel`. The
    norm comes before the reduction, or with `norm_order="branch"` after it, as in Swin V2.

    Args:
        x: `(batch, height, width, channels)`.

    Returns:
        `(batch, ceil(height / 2), ceil(width / 2), 2 * channels)`.
    """

    ROLES: ClassVar[Roles] = {
        "norm": LayerNorm.ROLES,
        "reduction": kernel_and_bias(Role.DOWNSAMPLE),
    }

    norm_order: WindowNormOrder = "pre"
    norm_eps: Positive = 1e-5
    init_scheme: SchemeName = "trunc02"
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch half_height half_width doubled"]:
        batch, height, width, channels = x.shape
        if height % 2 or width % 2:
            x = jnp.pad(x, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)))
        rows, columns = -(-height // 2), -(-width // 2)
        x = x.reshape(batch, rows, 2, columns, 2, channels).transpose(0, 1, 3, 4, 2, 5)
        x = x.reshape(batch, rows, columns, 4 * channels)
        norm = LayerNorm(epsilon=self.norm_eps, dtype=self.dtype, name="norm")
        reduction = Dense(
            2 * channels,
            use_bias=False,
            kernel_init=INIT_SCHEMES[self.init_scheme].kernel,
            dtype=self.dtype,
            name="reduction",
        )
        return reduction(norm(x)) if self.norm_order == "pre" else norm(reduction(x))
