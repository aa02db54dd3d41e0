"""PVT: a pyramid of four stages with spatial reduction of keys and values (Wang et al. 2021).

- Every stage begins with a patch embedding of its own, a norm and a learned position table. The
  blocks of a stage attend to all of its map, but keys and values are taken from the map shrunk by a
  strided convolution (spatial reduction, section 3.3): 64 times fewer of them in the first stage.
- A class token joins in the last stage, with a row in that stage's table; the maps of the other
  stages have none. `pool="mean"` leaves it out and averages the last map.
- Two epsilons: the authors give 1e-6 to the norms of blocks and torch's own 1e-5 to those after a
  convolution. transformers has 1e-6 in all of them.
- A strided convolution drops pixels that do not fill its window. Here this is an error: the sides
  of an image must be multiples of patches and reductions together, 32 pixels.
"""

import math
from typing import Annotated

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models import validation
from vit_jax.models.attention.implementations import Implementation
from vit_jax.models.block import Block, Remat, block_factory, remat_block, run_blocks
from vit_jax.models.description.blocks import BlockInfo, Stem
from vit_jax.models.description.receptive import Steps, global_steps
from vit_jax.models.description.roles import Blocks, Role, Roles, kernel_and_bias
from vit_jax.models.features import AttentionClassifier, Features
from vit_jax.models.fields import (
    Checked,
    Choice,
    Classes,
    Count,
    Counts,
    DepthsOfStages,
    DtypeName,
    Factory,
    Positive,
    Positives,
    Size,
    factory,
)
from vit_jax.models.initializers import INIT_SCHEMES, SchemeName
from vit_jax.models.layers.mlp import Activation
from vit_jax.models.layers.norm import LayerNorm
from vit_jax.models.layers.patch_embed import PatchEmbed
from vit_jax.models.layers.residual import stage_drop_path_rates
from vit_jax.models.positions.tables import PositionTable, ResizeMethod, resize_positions
from vit_jax.models.pvt.attention import ReducedAttention

Pool = Annotated[str, Choice("cls", "mean")]


class PVT(AttentionClassifier):
    """Pyramid Vision Transformer, version 1; the defaults are PVT-Small with 1000 classes.

    `model.apply({"params": params}, images)` takes float32 images `(batch, height, width,
    channels)`, already normalised, and gives float32 logits `(batch, classes)`; `method="features"`
    gives `Features`. Training wants `train=True` and, where a rate is not 0, the rng `"dropout"`.

    Parameters: `stages_{i}/{patch_embed, pre_norm, pos_embed}`, `cls_token` in the last stage,
    `stages_{i}/blocks_{j}/{norm1, attn/{qkv, out, sr, sr_norm}, norm2, mlp}`, `norm` and `head`.
    `sr` and `sr_norm` are there where a stage's reduction is more than 1.

    Raises:
        ValueError: at construction if fields do not fit each other, at the call if the images do
            not fit the model; the sentence names the nearest valid sizes.
    """

    num_classes: Classes = 1000  # 0: no head, the pooled features come out
    image_size: Size = 224  # the size the position tables are built for; (h, w) too
    in_channels: Count = 3
    # One number for each stage; there may be more or fewer than four.
    patch_sizes: Counts = (4, 2, 2, 2)  # cut out of the image, then out of the last map
    widths: Counts = (64, 128, 320, 512)  # of a token
    depths: DepthsOfStages = (3, 4, 6, 3)  # blocks
    heads: Counts = (1, 2, 5, 8)  # head_dim is 64 in all published sizes
    mlp_ratios: Positives = (8, 8, 4, 4)  # hidden width of the MLP, as a multiple of width
    reductions: Counts = (8, 4, 2, 1)  # sides of the map that keys and values shrink by
    pool: Pool = "cls"  # "mean": no class token, the mean of the last map
    qkv_bias: bool = True
    attention_dropout: float = 0.0  # on attention weights
    projection_dropout: float = 0.0  # after the attention's output projection
    mlp_dropout: float = 0.0  # in the MLP, after the activation and after fc2
    position_dropout: float = 0.0  # on the tokens of every stage once positions are added
    drop_path: float = (
        0.0  # of the last block, from 0 linearly over all; the authors train with 0.1
    )
    activation: Activation = "gelu"
    norm_eps: Positive = 1e-6  # of the norms in blocks and the last
    embed_norm_eps: Positive = 1e-5  # of the norms after patches and reductions: torch's own
    init_scheme: SchemeName = "trunc02"
    pos_resize: ResizeMethod = "torch-bilinear"  # of tables to another image size, as authors
    dtype: DtypeName = "float32"  # of the computation; parameters and logits are always float32
    attention_impl: Implementation = "auto"  # or "xla", "chunked", "cudnn", "pallas"
    remat: Remat = "none"  # the backward pass computes again "full" blocks, or all but "dots"

    def __post_init__(self):
        _check_fields(self)
        super().__post_init__()

    def setup(self):
        rates = stage_drop_path_rates(self.drop_path, self.depths)
        last = len(self.depths) - 1
        self.stages = [
            Stage(
                width=self.widths[i],
                patch_size=self.patch_sizes[i],
                built_grid=self.built_grids[i],
                blocks=tuple(self._block(i, rate) for rate in rates[i]),
                class_token=i == last and self.pool == "cls",
                **{name: getattr(self, name) for name in _OF_STAGES_ALIKE},
            )
            for i in range(len(self.depths))
        ]
        self.norm = LayerNorm(epsilon=self.norm_eps, dtype=self.dtype)
        # The head computes in float32 whatever the blocks do: logits are what losses are made of.
        if self.num_classes:
            kernel_init = INIT_SCHEMES[self.init_scheme].head
            self.head = nn.Dense(self.num_classes, kernel_init=kernel_init)

    def features(
        self,
        images: Float[Array, "batch height width channels"],
        *,
        train: bool = False,
        attention_weights: bool = False,
    ) -> Features:
        """The maps that the stages give, before any norm; and the last stage's tokens past it."""
        validation.check_images(self, images)
        size, stride = tuple(images.shape[1:3]), validation.pair(self.patch_size)
        validation.check_patches_fit(type(self).__name__, size, stride)
        x, maps, tokens = images, [], None
        for stage in self.stages:
            x, tokens = stage(x, train=train, attention_weights=attention_weights)
            maps.append(x)
        tokens = self.norm(tokens)
        # The mean sums in float32, also for bfloat16.
        pooled = tokens[:, 0] if self.prefix else tokens.mean(axis=1)
        return Features(tokens, pooled, tuple(x.shape[1:3]), self.prefix, tuple(maps))

    def roles(self) -> Roles:
        """Return the roles of the parameters, in the order of the forward pass."""
        return {
            "stages_*": {
                "patch_embed": PatchEmbed.ROLES,
                "pre_norm": LayerNorm.ROLES,
                "cls_token": Role.TOKEN,
                "pos_embed": Role.POSITION_TABLE,
                "blocks_*": Blocks({**Block.ROLES, "attn": ReducedAttention.ROLES}),
            },
            "norm": LayerNorm.ROLES,
            "head": kernel_and_bias(Role.HEAD),
        }

    def block_infos(self, image_size: int | tuple[int, int] | None = None) -> tuple[BlockInfo, ...]:
        """Return the blocks, for images of a size in pixels; None: the model's own."""
        height, width = validation.pair(image_size or self.image_size)
        stride, last, blocks = 1, len(self.depths) - 1, []
        for stage, (depth, side) in enumerate(zip(self.depths, self.patch_sizes, strict=True)):
            stride, reduction = stride * side, self.reductions[stage]
            grid = (height // stride, width // stride)
            prefix = self.prefix if stage == last else 0
            blocks += [
                BlockInfo(
                    f"stages_{stage}/blocks_{j}",
                    "attention",
                    grid,
                    (stride, stride),
                    prefix,
                    stage,
                    keys_grid=(grid[0] // reduction, grid[1] // reduction),
                    keys_prefix=prefix if reduction == 1 else 0,
                )
                for j in range(depth)
            ]
        return tuple(blocks)

    def receptive_steps(
        self, image_size: int | tuple[int, int] | None = None, axis: int = 0
    ) -> Steps:
        """Return the steps to every block's output: attention sees the whole image."""
        blocks = self.block_infos(image_size)
        return global_steps((block.path, block.patch_size[axis]) for block in blocks)

    def _block(self, stage: int, drop_path: float) -> Factory:
        """Return the factory of a block of a stage."""
        return block_factory(
            self,
            ReducedAttention,
            block=remat_block(Block, self.remat, in_loop=False),
            heads=self.heads[stage],
            mlp_width=int(self.widths[stage] * self.mlp_ratios[stage]),
            reduction=self.reductions[stage],
            drop_path=drop_path,
        )

    @property
    def patch_stem(self) -> Stem:
        """The patch embedding of the first stage with its norm."""
        return Stem(("stages_0", "pre_norm"), self.widths[0], validation.pair(self.patch_sizes[0]))

    @property
    def prefix(self) -> int:
        """The number of tokens in front of the patches of the last stage."""
        return int(self.pool == "cls")

    @property
    def patch_size(self) -> int:
        """Unit of the sides of images: in its multiples, patches and reductions fill their maps.

        With the published sizes that is the stride of the last map, 32 pixels.
        """
        strides = [math.prod(self.patch_sizes[: i + 1]) for i in range(len(self.patch_sizes))]
        return math.lcm(*(s * r for s, r in zip(strides, self.reductions, strict=True)))

    @property
    def built_grids(self) -> tuple[tuple[int, int], ...]:
        """`(height, width)` of every stage's map at the size that the tables are made for."""
        grid, grids = validation.pair(self.image_size), []
        for patch in self.patch_sizes:
            grid = (grid[0] // patch, grid[1] // patch)
            grids.append(grid)
        return tuple(grids)

    @property
    def position_tables(self) -> dict[str, PositionTable]:
        """The tables that can be resized to another grid, by their paths."""
        last = len(self.depths) - 1
        return {
            f"stages_{i}/pos_embed": PositionTable(
                grid, self.prefix if i == last else 0, self.pos_resize
            )
            for i, grid in enumerate(self.built_grids)
        }


class Stage(Checked):
    """Patches out of a map, positions, and blocks; in the last stage with a class token.

    Gives the map `(batch, height, width, channels)` and all tokens `(batch, tokens, channels)`.
    """

    width: int
    patch_size: int
    built_grid: tuple[int, int]  # what the position table is made for
    blocks: tuple[Factory, ...]
    class_token: bool
    position_dropout: float
    pos_resize: str
    embed_norm_eps: float
    init_scheme: str
    dtype: str

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch height width channels"],
        *,
        train: bool = False,
        attention_weights: bool = False,
    ) -> tuple[
        Float[Array, "batch stage_height stage_width stage_channels"],
        Float[Array, "batch tokens stage_channels"],
    ]:
        scheme, prefix, dtype = INIT_SCHEMES[self.init_scheme], int(self.class_token), self.dtype
        side = (self.patch_size, self.patch_size)
        x = factory(PatchEmbed, self, patch_size=side)(name="patch_embed")(x)
        x = LayerNorm(epsilon=self.embed_norm_eps, dtype=dtype, name="pre_norm")(x)
        batch, *grid, width = x.shape
        x = x.reshape(batch, -1, width)
        if self.class_token:
            token = self.param("cls_token", scheme.class_token, (1, 1, width))
            x = jnp.concatenate([jnp.broadcast_to(token, (batch, 1, width)).astype(dtype), x], 1)
        rows = prefix + math.prod(self.built_grid)
        positions = resize_positions(
            self.param("pos_embed", scheme.positions, (1, rows, width)),
            self.built_grid,
            tuple(grid),
            prefix=prefix,
            kernel=self.pos_resize,
        )
        x = x + positions.astype(dtype)
        x = nn.Dropout(self.position_dropout)(x, deterministic=not train)

        blocks = [block(name=f"blocks_{j}") for j, block in enumerate(self.blocks)]
        asked = {"train": train, "attention_weights": attention_weights, "grid": tuple(grid)}
        x = run_blocks(blocks, x, (), **asked)
        return x[:, prefix:].reshape(batch, *grid, width), x


_OF_STAGES = ("patch_sizes", "widths", "depths", "heads", "mlp_ratios", "reductions")
_OF_STAGES_ALIKE = ("position_dropout", "pos_resize", "embed_norm_eps", "init_scheme", "dtype")


def _check_fields(model: PVT) -> None:
    """Raise ValueError for fields that are invalid or do not fit each other."""
    name = type(model).__name__
    validation.check_types(model)
    validation.check_stages(model, _OF_STAGES)
    validation.check_patches_fit(
        name, validation.pair(model.image_size), validation.pair(model.patch_size)
    )
    validation.check_tokens(name, model.built_grids[0])
