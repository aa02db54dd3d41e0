"""Decoder of a masked autoencoder: from encoded visible patches to the pixels of all patches."""

from typing import ClassVar

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from vit_jax.models.block import Block, block_factory, remat_block, run_blocks
from vit_jax.models.description.roles import Blocks, Role, Roles, kernel_and_bias
from vit_jax.models.fields import Checked
from vit_jax.models.initializers import INIT_SCHEMES
from vit_jax.models.layers.norm import LayerNorm
from vit_jax.models.positions.tables import sincos2d


class MaeDecoder(Checked):
    """Decoder of He et al. 2022, "Masked Autoencoders Are Scalable Vision Learners", section 3.

    Tokens are projected to the decoder's width, one learned token stands for every removed patch,
    all are put in raster order, and blocks predict the pixels of each patch. Positions are a fixed
    table of sines and cosines. Prefix tokens take part without a position.

    Parameters: `embed`, `mask_token (1, 1, width)`, `blocks_{i}`, `norm` and `pred`.

    grid: (height, width) in patches. pixels: numbers of a patch. prefix: tokens before the patches.
    """

    ROLES: ClassVar[Roles] = {
        "embed": kernel_and_bias(Role.LINEAR),
        "mask_token": Role.TOKEN,
        "blocks_*": Blocks(Block.ROLES),
        "norm": LayerNorm.ROLES,
        "pred": kernel_and_bias(Role.LINEAR),
    }

    grid: tuple[int, int]
    pixels: int
    prefix: int = 1
    width: int = 512
    depth: int = 8
    heads: int = 16
    mlp_ratio: float = 4.0
    norm_eps: float = 1e-6
    dtype: str = "float32"
    remat: str = "none"

    @nn.compact
    def __call__(
        self,
        tokens: Float[Array, "batch tokens encoder_width"],
        restore: Int[Array, "batch patches"],
        *,
        train: bool = False,
    ) -> Float[Array, "batch patches pixels"]:
        """Return the predicted pixels in float32.

        Args:
            tokens: of the encoder, the prefix first, then the kept patches.
            restore: place of every patch among the kept ones followed by the removed ones.
        """
        scheme = INIT_SCHEMES["mae"]
        x = nn.Dense(self.width, kernel_init=scheme.kernel, dtype=self.dtype, name="embed")(tokens)
        prefix, kept = x[:, : self.prefix], x[:, self.prefix :]
        mask_token = self.param("mask_token", scheme.registers, (1, 1, self.width))
        batch, patches = restore.shape
        shape = (batch, patches - kept.shape[1], self.width)
        removed = jnp.broadcast_to(mask_token, shape).astype(x.dtype)
        x = jnp.concatenate([kept, removed], axis=1)
        x = jnp.take_along_axis(x, restore[..., None], axis=1)
        x = x + jnp.asarray(sincos2d(self.grid, self.width), x.dtype)
        x = jnp.concatenate([prefix, x], axis=1)
        block = block_factory(
            self,
            block=remat_block(Block, self.remat, in_loop=False),
            mlp_width=int(self.width * self.mlp_ratio),
            init_scheme="mae",
        )
        blocks = [block(name=f"blocks_{i}") for i in range(self.depth)]
        x = run_blocks(blocks, x, (), train=train)
        x = LayerNorm(epsilon=self.norm_eps, dtype=self.dtype, name="norm")(x)
        x = x[:, self.prefix :].astype(jnp.float32)  # the loss is made of it
        return nn.Dense(self.pixels, kernel_init=scheme.kernel, name="pred")(x)
