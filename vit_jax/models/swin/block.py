"""The block of Swin: attention within windows, then an MLP; and the merging of patches.

- The windows come from the map that the block sees, so that any size goes. The table of relative
  positions belongs to the window that the model was built with; a smaller map uses its middle.
- Both residual branches add to what came in, `x + f(norm(x))`, never to the normed map.
"""

from typing import ClassVar

import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Float

from vit_jax.models.attention.multi_head import Attention, QueryKeyValue, attention
from vit_jax.models.attention.windows import Windows, fit_windows, relative_index
from vit_jax.models.description.roles import Role, Roles, kernel_and_bias
from vit_jax.models.fields import Checked
from vit_jax.models.initializers import INIT_SCHEMES
from vit_jax.models.layers.linear import flat_dot_general
from vit_jax.models.layers.mlp import Mlp
from vit_jax.models.layers.norm import LayerNorm
from vit_jax.models.layers.residual import DropPath


class SwinBlock(Checked):
    """One block on a map `(batch, height, width, channels)`; shape kept (Swin paper, eq. 3).

    Every second block of a stage has `shifted` windows. The output is sown as
    `intermediates/.../out`, and on request the weights of every window, `(batch * windows, heads,
    tokens, tokens)`, as `.../attn/weights`; `windows.query_map` puts them back on the map.
    """

    ROLES: ClassVar[Roles] = {
        "norm1": LayerNorm.ROLES,
        "attn": Attention.ROLES,  # `WindowAttention` has the same parameters
        "norm2": LayerNorm.ROLES,
        "mlp": Mlp.ROLES,
    }

    heads: int
    mlp_width: int
    window: tuple[int, int]
    shifted: bool = False
    qkv_bias: bool = True
    attention_dropout: float = 0.0
    projection_dropout: float = 0.0
    mlp_dropout: float = 0.0
    drop_path: float = 0.0
    activation: str = "gelu"
    norm_eps: float = 1e-5
    init_scheme: str = "trunc02"
    dtype: str = "float32"

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch height width channels"],
        *,
        train: bool = False,
        attention_weights: bool = False,
    ) -> Float[Array, "batch height width channels"]:
        windows = fit_windows(x.shape[1:3], self.window, shifted=self.shifted)
        attn = WindowAttention(
            self.heads,
            self.window,
            self.qkv_bias,
            self.attention_dropout,
            self.projection_dropout,
            self.init_scheme,
            self.dtype,
            name="attn",
        )
        mlp = Mlp(
            self.mlp_width,
            self.activation,
            self.mlp_dropout,
            self.init_scheme,
            self.dtype,
            name="mlp",
        )
        norm1, norm2 = (
            LayerNorm(epsilon=self.norm_eps, dtype=self.dtype, name=name)
            for name in ("norm1", "norm2")
        )
        drop_path = DropPath(self.drop_path)

        inside = windows.partition(norm1(x))
        inside = attn(inside, windows, train=train, attention_weights=attention_weights)
        x = x + drop_path(windows.put_back(inside), train=train)
        x = x + drop_path(mlp(norm2(x), train=train), train=train)
        self.sow("intermediates", "out", x)
        return x

    def step(
        self, x: Array, _: None, train: bool, attention_weights: bool, grid: None
    ) -> tuple[Array, None]:
        """The call in the form that `block.remat_block` wants; the map has its grid itself."""
        return self(x, train=train, attention_weights=attention_weights), None


class WindowAttention(Checked):
    """Multi-head attention within windows, with a learned bias for every offset (Swin, eq. 4).

    Parameters: `qkv` and `out` as of `Attention`, and `relative_bias ((2h - 1) * (2w - 1), heads)`
    for a window of h x w, which is added to the logits after they are scaled.

    Args:
        x: `(batch * windows, tokens, channels)`, as `Windows.partition` gives it.
        windows: how the map was cut; its window may be smaller than the table's.
    """

    heads: int
    window: tuple[int, int]
    qkv_bias: bool = True
    attention_dropout: float = 0.0
    projection_dropout: float = 0.0
    init_scheme: str = "trunc02"
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch_windows tokens channels"],
        windows: Windows,
        *,
        train: bool = False,
        attention_weights: bool = False,
    ) -> Float[Array, "batch_windows tokens channels"]:
        scheme, width = INIT_SCHEMES[self.init_scheme], x.shape[-1]
        q, k, v = QueryKeyValue(
            self.heads, width // self.heads, self.qkv_bias, self.init_scheme, self.dtype, name="qkv"
        )(x)
        height, columns = self.window
        rows = (2 * height - 1) * (2 * columns - 1)
        table = self.param("relative_bias", scheme.positions, (rows, self.heads))
        bias = table[relative_index(windows.window, self.window)]
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
        out = nn.DenseGeneral(
            width,
            axis=(-2, -1),
            kernel_init=scheme.kernel,
            dtype=self.dtype,
            dot_general=flat_dot_general,
            name="out",
        )(mixed)
        return nn.Dropout(self.projection_dropout)(out, deterministic=not train)


class PatchMerging(Checked):
    """Four neighbours become one token of twice the width (Swin paper, section 3.1).

    Odd sides are padded with zeros at the bottom and on the right. The neighbours stand behind each
    other column by column, as in the authors' code; parameters `norm` and `reduction/kernel`.

    Args:
        x: `(batch, height, width, channels)`.

    Returns:
        `(batch, ceil(height / 2), ceil(width / 2), 2 * channels)`.
    """

    ROLES: ClassVar[Roles] = {
        "norm": LayerNorm.ROLES,
        "reduction": kernel_and_bias(Role.DOWNSAMPLE),
    }

    norm_eps: float = 1e-5
    init_scheme: str = "trunc02"
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
        x = LayerNorm(epsilon=self.norm_eps, dtype=self.dtype, name="norm")(x)
        return nn.Dense(
            2 * channels,
            use_bias=False,
            kernel_init=INIT_SCHEMES[self.init_scheme].kernel,
            dtype=self.dtype,
            dot_general=flat_dot_general,
            name="reduction",
        )(x)
