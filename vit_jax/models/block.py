"""Transformer block, with rematerialisation and a scan over many blocks.

- Rematerialisation stores fewer activations for the backward pass and recomputes them; a loop over
  layers is traced and compiled once. Both wrap the class, and the block does not depend on them.
- Outputs and gradients stay equal up to rounding for the same parameters. The random bits of
  dropout are equal with rematerialisation, but different in a loop.
"""

from typing import ClassVar

import jax
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.attention.multi_head import Attention
from vit_jax.models.attention.types import AttentionType
from vit_jax.models.description.roles import Roles
from vit_jax.models.fields import Checked
from vit_jax.models.layers.mlp import Mlp
from vit_jax.models.layers.norm import LayerNorm
from vit_jax.models.layers.residual import DropPath, LayerScale
from vit_jax.models.positions.types import AttentionPositions


class Block(Checked):
    """Transformer block: attention, then MLP, each on a residual branch; shape kept.

    With `norm_order="pre"` a norm begins each branch, `x + f(norm(x))` (ViT paper, eq. 2 and 3);
    with `"post"` it follows the sum, `norm(x + f(x))` (Vaswani et al. 2017, section 3.1). The
    output is sown as `intermediates/.../out`.
    """

    ROLES: ClassVar[Roles] = {
        "norm1": LayerNorm.ROLES,
        "attn": Attention.ROLES,
        "ls1": LayerScale.ROLES,
        "norm2": LayerNorm.ROLES,
        "mlp": Mlp.ROLES,
        "ls2": LayerScale.ROLES,
    }

    heads: int
    mlp_width: int
    head_dim: int | None = None
    qkv_bias: bool = True
    qk_norm: bool = False
    norm_order: str = "pre"
    layer_scale: float | None = None
    attention_dropout: float = 0.0
    projection_dropout: float = 0.0
    mlp_dropout: float = 0.0
    drop_path: float = 0.0
    activation: str = "gelu"
    norm_eps: float = 1e-6
    init_scheme: str = "vit"
    dtype: str = "float32"
    attention_impl: str = "auto"
    mlp_kind: str = "plain"
    lora_rank: int = 0
    attention_type: AttentionType = AttentionType()
    positions: AttentionPositions = AttentionPositions()

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch tokens width"],
        *,
        train: bool = False,
        attention_weights: bool = False,
        drop_path: Float[Array, ""] | None = None,  # replaces the field if it is traced
        grid: tuple[int, int] | None = None,  # of the patches, the last tokens
    ) -> Float[Array, "batch tokens width"]:
        attn = Attention(
            self.heads,
            self.head_dim,
            self.qkv_bias,
            self.qk_norm,
            self.attention_dropout,
            self.projection_dropout,
            self.norm_eps,
            self.init_scheme,
            self.dtype,
            self.attention_impl,
            self.lora_rank,
            self.attention_type,
            self.positions,
            name="attn",
        )
        mlp = Mlp(
            self.mlp_width,
            self.activation,
            self.mlp_dropout,
            self.init_scheme,
            self.dtype,
            self.mlp_kind,
            self.lora_rank,
            name="mlp",
        )
        norm1 = LayerNorm(epsilon=self.norm_eps, dtype=self.dtype, name="norm1")
        norm2 = LayerNorm(epsilon=self.norm_eps, dtype=self.dtype, name="norm2")

        def scaled_and_dropped(branch, scale_name):
            if self.layer_scale is not None:
                branch = LayerScale(self.layer_scale, self.dtype, name=scale_name)(branch)
            return DropPath(self.drop_path)(branch, train=train, rate=drop_path)

        asked = {"train": train, "attention_weights": attention_weights, "grid": grid}
        if self.norm_order == "pre":
            x = x + scaled_and_dropped(attn(norm1(x), **asked), "ls1")
            x = x + scaled_and_dropped(mlp(norm2(x), train=train), "ls2")
        else:
            x = norm1(x + scaled_and_dropped(attn(x, **asked), "ls1"))
            x = norm2(x + scaled_and_dropped(mlp(x, train=train), "ls2"))
        self.sow("intermediates", "out", x)
        return x

    def step(
        self,
        x: Float[Array, "batch tokens width"],
        drop_path: Float[Array, ""] | None,
        train: bool,
        attention_weights: bool,
        grid: tuple[int, int] | None = None,
    ) -> tuple[Float[Array, "batch tokens width"], None]:
        """Call the block in the form of `nn.scan` and `nn.remat`: a carry and no result."""
        asked = {"train": train, "attention_weights": attention_weights}
        return self(x, drop_path=drop_path, grid=grid, **asked), None


def remat_block(block: type[Block], remat: str, in_loop: bool) -> type[Block]:
    """Return the block class with rematerialisation of activations in the backward pass.

    "full" stores only the inputs of a block. "dots" also stores the results of products with
    parameters and recomputes the rest: norms, GELU, and the products with a batch axis, that is the
    two of attention, a small part of the work with results of tokens x tokens.
    """
    if remat == "none":
        return block
    policies = {"dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable, "full": None}
    return nn.remat(
        block,
        policy=policies[remat],
        # In a loop the compiler cannot merge the second computation with the first.
        prevent_cse=not in_loop,
        static_argnums=(3, 4, 5),  # of `step`, counting self: train, attention_weights, grid
        methods=["step"],
    )


def scan_blocks(block: type[Block], depth: int) -> type[Block]:
    """Return the block class as a loop over `depth` layers with separate parameters and rngs.

    Its `step` takes the drop-path rate of every layer.
    """
    return nn.scan(
        block,
        variable_axes={"params": 0, "intermediates": 0, "perturbations": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(0, nn.broadcast, nn.broadcast, nn.broadcast),
        length=depth,
        methods=["step"],
    )
