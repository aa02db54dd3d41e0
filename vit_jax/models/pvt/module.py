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

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.errors import shown
from vit_jax.models import validation
from vit_jax.models.block import remat_block
from vit_jax.models.description.blocks import BlockInfo, Stem
from vit_jax.models.description.receptive import Steps, global_steps
from vit_jax.models.description.roles import Blocks, Role, Roles, kernel_and_bias
from vit_jax.models.features import Features
from vit_jax.models.fields import Checked
from vit_jax.models.initializers import INIT_SCHEMES
from vit_jax.models.layers.norm import LayerNorm
from vit_jax.models.layers.patch_embed import PatchEmbed
from vit_jax.models.layers.residual import stage_drop_path_rates
from vit_jax.models.positions.tables import PositionTable, resize_positions
from vit_jax.models.pvt.block import PVTBlock


class PVT(nn.Module):
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

    num_classes: int = 1000  # 0: no head, the pooled features come out
    image_size: int | tuple[int, int] = (
        224  # the size the position tables are built for; (h, w) too
    )
    in_channels: int = 3
    # One number for each stage; there may be more or fewer than four.
    patch_sizes: tuple[int, ...] = (4, 2, 2, 2)  # cut out of the image, then out of the last map
    widths: tuple[int, ...] = (64, 128, 320, 512)  # of a token
    depths: tuple[int, ...] = (3, 4, 6, 3)  # blocks
    heads: tuple[int, ...] = (1, 2, 5, 8)  # head_dim is 64 in all published sizes
    mlp_ratios: tuple[float, ...] = (8, 8, 4, 4)  # hidden width of the MLP, as a multiple of width
    reductions: tuple[int, ...] = (8, 4, 2, 1)  # sides of the map that keys and values shrink by
    pool: str = "cls"  # "mean": no class token, the mean of the last map
    qkv_bias: bool = True
    attention_dropout: float = 0.0  # on attention weights
    projection_dropout: float = 0.0  # after the attention's output projection
    mlp_dropout: float = 0.0  # in the MLP, after the activation and after fc2
    position_dropout: float = 0.0  # on the tokens of every stage once positions are added
    drop_path: float = (
        0.0  # of the last block, from 0 linearly over all; the authors train with 0.1
    )
    activation: str = "gelu"
    norm_eps: float = 1e-6  # of the norms in blocks and the last: `norm_layer` in the authors' code
    embed_norm_eps: float = 1e-5  # of the norms after patches and reductions: torch's own
    init_scheme: str = "trunc02"
    pos_resize: str = "torch-bilinear"  # how tables go to another image size, as the authors do
    dtype: str = "float32"  # of the computation; parameters and logits are always float32
    attention_impl: str = "auto"  # or "xla", "chunked" (little memory), "cudnn", "pallas"
    remat: str = "none"  # the backward pass computes again "full" blocks, or all but "dots"

    def __post_init__(self):
        _check_fields(self)
        super().__post_init__()

    def setup(self):
        shared = {name: getattr(self, name) for name in _OF_ALL_BLOCKS}
        rates = stage_drop_path_rates(self.drop_path, self.depths)
        last = len(self.depths) - 1
        self.stages = [
            Stage(
                width=self.widths[i],
                patch_size=self.patch_sizes[i],
                built_grid=self.built_grids[i],
                heads=self.heads[i],
                mlp_width=int(self.widths[i] * self.mlp_ratios[i]),
                reduction=self.reductions[i],
                class_token=i == last and self.pool == "cls",
                drop_paths=rates[i],
                position_dropout=self.position_dropout,
                pos_resize=self.pos_resize,
                remat=self.remat,
                shared=shared,
            )
            for i in range(len(self.depths))
        ]
        self.norm = LayerNorm(epsilon=self.norm_eps, dtype=self.dtype)
        # The head computes in float32 whatever the blocks do: logits are what losses are made of.
        if self.num_classes:
            kernel_init = INIT_SCHEMES[self.init_scheme].head
            self.head = nn.Dense(self.num_classes, kernel_init=kernel_init)

    def __call__(
        self,
        images: Float[Array, "batch height width channels"],
        *,
        train: bool = False,
        attention_weights: bool = False,
    ) -> Float[Array, "batch classes"]:
        """Logits in float32; with `num_classes=0` the pooled features."""
        features = self.features(images, train=train, attention_weights=attention_weights)
        x = features.pooled.astype(jnp.float32)
        return self.head(x) if self.num_classes else x

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
                "blocks_*": Blocks(PVTBlock.ROLES),
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
    heads: int
    mlp_width: int
    reduction: int
    class_token: bool
    drop_paths: tuple[float, ...]  # of the blocks
    position_dropout: float
    pos_resize: str
    remat: str
    shared: dict[str, object]  # fields that all blocks have in common

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
        init_scheme, dtype = self.shared["init_scheme"], self.shared["dtype"]
        scheme, prefix = INIT_SCHEMES[init_scheme], int(self.class_token)
        x = PatchEmbed(
            self.width,
            (self.patch_size, self.patch_size),
            init_scheme=init_scheme,
            dtype=dtype,
            name="patch_embed",
        )(x)
        x = LayerNorm(epsilon=self.shared["embed_norm_eps"], dtype=dtype, name="pre_norm")(x)
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

        block = remat_block(PVTBlock, self.remat, in_loop=False)
        for j, drop_path in enumerate(self.drop_paths):
            x, _ = block(
                heads=self.heads,
                mlp_width=self.mlp_width,
                reduction=self.reduction,
                grid=tuple(grid),
                drop_path=drop_path,
                **self.shared,
                name=f"blocks_{j}",
            ).step(x, None, train, attention_weights, None)
        return x[:, prefix:].reshape(batch, *grid, width), x


_OF_STAGES = ("patch_sizes", "widths", "depths", "heads", "mlp_ratios", "reductions")
_OF_ALL_BLOCKS = (
    "qkv_bias",
    "attention_dropout",
    "projection_dropout",
    "mlp_dropout",
    "activation",
    "norm_eps",
    "embed_norm_eps",
    "init_scheme",
    "dtype",
    "attention_impl",
)


def _check_fields(model: PVT) -> None:
    """Raise ValueError for fields that are invalid or do not fit each other."""
    name = type(model).__name__
    validation.check_types_and_choices(model)
    validation.check_choice(name, "pool", model.pool, ("cls", "mean"))
    validation.check_classes(model)
    validation.check_count(name, "in_channels", model.in_channels)
    for field in ("norm_eps", "embed_norm_eps"):
        validation.check_positive(name, field, getattr(model, field))
    stages = len(model.depths)
    for field in _OF_STAGES:
        numbers = getattr(model, field)
        if len(numbers) != stages:
            raise ValueError(
                f"{name}: {field}={shown(numbers)} must have one number for each stage, of "
                f"which depths={shown(model.depths)} has {stages}."
            )
        check = validation.check_positive if field == "mlp_ratios" else validation.check_count
        for i, number in enumerate(numbers):
            check(name, f"{field}[{i}]", number)
    validation.check_blocks(name, "depths", model.depths)
    for i in range(stages):
        validation.check_hidden(name, f"mlp_ratios[{i}]", model.mlp_ratios[i], model.widths[i])
        validation.check_multiple(
            name, f"widths[{i}]", model.widths[i], f"heads[{i}]", model.heads[i]
        )
    validation.check_size(name, "image_size", model.image_size)
    validation.check_patches_fit(
        name, validation.pair(model.image_size), validation.pair(model.patch_size)
    )
    validation.check_tokens(name, model.built_grids[0])
