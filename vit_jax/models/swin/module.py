"""Swin: a pyramid of four stages with attention within shifted windows (Liu et al. 2021, 2022).

- Attention costs as much for a token in a large image as in a small one; windows that are shifted
  by half in every second block connect neighbours, and merged patches let them reach further.
- Images of any size go in. Sides that patches do not fill are padded with zeros, as the authors
  do for detection; maps that windows do not fill are padded too, and that padding is masked.
- What depends on `image_size` is the size of the tables: a stage whose map is smaller than the
  window has a table for a window of that size. Swin V2 has no tables; there the coordinates of
  offsets depend on that window, unless `pretrained_windows` says which.
- A stage begins with the merging of patches, so that `stages[i]` is what comes after its blocks.
"""

import math

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.errors import shown
from vit_jax.models import validation
from vit_jax.models.attention.multi_head import QkvBias
from vit_jax.models.attention.windows import Windows, fit_windows
from vit_jax.models.block import Block, Remat, Stage, block_factory, remat_block
from vit_jax.models.description.blocks import BlockInfo, Stem
from vit_jax.models.description.receptive import Steps, WindowStep, patches
from vit_jax.models.description.roles import Blocks, Role, Roles, kernel_and_bias
from vit_jax.models.features import AttentionClassifier, Features
from vit_jax.models.fields import (
    Classes,
    Count,
    Counts,
    DepthsOfStages,
    DtypeName,
    Factory,
    Positive,
    Size,
    factory,
)
from vit_jax.models.initializers import INIT_SCHEMES, SchemeName
from vit_jax.models.layers.mlp import Activation
from vit_jax.models.layers.norm import LayerNorm
from vit_jax.models.layers.patch_embed import PatchEmbed
from vit_jax.models.layers.residual import stage_drop_path_rates
from vit_jax.models.positions.tables import PositionTable, ResizeMethod
from vit_jax.models.swin.attention import (
    PatchMerging,
    PositionBias,
    WindowAttention,
    WindowNormOrder,
)


class Swin(AttentionClassifier):
    """Swin Transformer; the defaults are Swin-T at 224 pixels with 1000 classes.

    Swin V2 has norms on what branches give, cosine attention, biases computed from coordinates,
    and keys without a bias: `norm_order="branch", cosine=True, position_bias="continuous",
    qkv_bias="qv"`. Its blocks begin as the identity, with scales of norms at 0.

    `model.apply({"params": params}, images)` takes float32 images `(batch, height, width,
    channels)`, already normalised, and gives float32 logits `(batch, classes)`; `method="features"`
    gives `Features`. Training wants `train=True` and, where a rate is not 0, the rng `"dropout"`.

    Parameters: `patch_embed`, `pre_norm`, `stages_{i}/downsample/{norm,reduction}` from the second
    stage on, `stages_{i}/blocks_{j}/{norm1,attn,norm2,mlp}`, `norm` and `head`.

    Raises:
        ValueError: at construction if fields do not fit each other, at the call if images have
            other axes, channels or numbers.
    """

    num_classes: Classes = 1000  # 0: no head, the pooled features come out
    image_size: Size = 224  # the size the tables are built for; (h, w) too
    patch_size: Size = 4
    in_channels: Count = 3
    width: Count = 96  # of the first stage's tokens; each later stage has twice as many
    depths: DepthsOfStages = (2, 2, 6, 2)  # blocks of the stages; even, to end on shifted windows
    heads: Counts = (3, 6, 12, 24)  # head_dim is 32 in all published sizes
    window: Size = 7  # in tokens, (h, w) too; published at 384 pixels with 12
    mlp_ratio: Positive = 4.0
    qkv_bias: QkvBias = True
    norm_order: WindowNormOrder = "pre"  # of blocks and merging
    cosine: bool = False  # attention by cosines with a learned scale
    position_bias: PositionBias = "table"
    # Sides of the windows in pre-training, by stage, if "continuous" coordinates are to be relative
    # to them and not to the windows of this model.
    pretrained_windows: Counts | None = None
    attention_dropout: float = 0.0
    projection_dropout: float = 0.0
    mlp_dropout: float = 0.0
    drop_path: float = 0.0  # of the last block; the paper trains T, S, B with 0.2, 0.3, 0.5
    activation: Activation = "gelu"
    norm_eps: Positive = 1e-5  # torch's default
    init_scheme: SchemeName = "trunc02"
    pos_resize: ResizeMethod = "torch-bicubic"  # of tables to another window, as the authors do it
    dtype: DtypeName = "float32"  # of the computation; parameters and logits are always float32
    remat: Remat = "none"  # the backward pass computes again "full" blocks, or all but "dots"

    def __post_init__(self):
        _check_fields(self)
        super().__post_init__()

    def setup(self):
        self.patch_embed = PatchEmbed(
            self.width,
            validation.pair(self.patch_size),
            init_scheme=self.init_scheme,
            dtype=self.dtype,
        )
        self.pre_norm = self._layer_norm()
        rates = stage_drop_path_rates(self.drop_path, self.depths)
        self.stages = [
            Stage(
                tuple(self._block(i, j, rate) for j, rate in enumerate(rates[i])),
                factory(PatchMerging, self) if i else None,
            )
            for i in range(len(self.depths))
        ]
        self.norm = self._layer_norm()
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
        """The maps that the stages give; of the last, tokens past the norm and their mean."""
        x = self.embed(images)
        maps = []
        for stage in self.stages:
            x = stage(x, train=train, attention_weights=attention_weights)
            maps.append(x)
        grid = tuple(x.shape[1:3])
        tokens = self.norm(x).reshape(x.shape[0], -1, x.shape[-1])
        pooled = tokens.mean(axis=1)  # sums in float32, also for bfloat16
        return Features(tokens=tokens, pooled=pooled, grid=grid, stages=tuple(maps))

    def embed(
        self, images: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch grid_height grid_width width"]:
        """Images to the map of tokens that enters the first stage."""
        if images.ndim == 4:
            missing = [
                -side % p
                for side, p in zip(images.shape[1:3], validation.pair(self.patch_size), strict=True)
            ]
            if any(missing):
                images = jnp.pad(images, ((0, 0), (0, missing[0]), (0, missing[1]), (0, 0)))
        validation.check_images(self, images)
        return self.pre_norm(self.patch_embed(images))

    def grids(self, image_size: int | tuple[int, int] | None = None) -> list[tuple[int, int]]:
        """(height, width) in tokens of every stage's map, for images of a size in pixels."""
        size = validation.pair(self.image_size if image_size is None else image_size)
        patch = validation.pair(self.patch_size)
        grid = tuple(-(-side // p) for side, p in zip(size, patch, strict=True))
        return [tuple(-(-side // 2**i) for side in grid) for i in range(len(self.depths))]

    def block_windows(self, image_size: int | tuple[int, int] | None = None) -> dict[str, Windows]:
        """Return the window partition of every block, by path, for images of a size in pixels."""
        return {
            f"stages_{i}/blocks_{j}": fit_windows(grid, window, shifted=j % 2 == 1)
            for i, (grid, window) in enumerate(
                zip(self.grids(image_size), self.built_windows, strict=True)
            )
            for j in range(self.depths[i])
        }

    def roles(self) -> Roles:
        """Return the roles of the parameters, in the order of the forward pass."""
        return {
            "patch_embed": PatchEmbed.ROLES,
            "pre_norm": LayerNorm.ROLES,
            "stages_*": {
                "downsample": PatchMerging.ROLES,
                "blocks_*": Blocks({**Block.ROLES, "attn": WindowAttention.ROLES}),
            },
            "norm": LayerNorm.ROLES,
            "head": kernel_and_bias(Role.HEAD),
        }

    def block_infos(self, image_size: int | tuple[int, int] | None = None) -> tuple[BlockInfo, ...]:
        """Return the blocks, for images of a size in pixels; None: the model's own."""
        patch, windows = validation.pair(self.patch_size), self.block_windows(image_size)
        paths = [(i, f"stages_{i}/blocks_{j}") for i, n in enumerate(self.depths) for j in range(n)]
        return tuple(
            BlockInfo(
                path,
                "attention",
                windows[path].grid,
                (patch[0] * 2**stage, patch[1] * 2**stage),
                stage=stage,
                windows=windows[path],
            )
            for stage, path in paths
        )

    def receptive_steps(
        self, image_size: int | tuple[int, int] | None = None, axis: int = 0
    ) -> Steps:
        """Return the steps to every block's output: patches, merging, and windows."""
        path, steps, stage = [patches(validation.pair(self.patch_size)[axis])], {}, 0
        for block in self.block_infos(image_size):
            if block.stage != stage:
                stage, path = block.stage, [*path, patches(2)]
            cut = block.windows
            step = WindowStep(cut.grid[axis], cut.window[axis], cut.shift[axis])
            steps[block.path] = path = [*path, step]
        return steps

    @property
    def patch_stem(self) -> Stem:
        """The patch embedding with its norm."""
        return Stem(("pre_norm",), self.width, validation.pair(self.patch_size))

    @property
    def built_windows(self) -> list[tuple[int, int]]:
        """The window of every stage's tables: the built map where that is smaller."""
        window = validation.pair(self.window)
        return [fit_windows(grid, window, shifted=False).window for grid in self.grids()]

    @property
    def position_tables(self) -> dict[str, PositionTable]:
        """The tables of relative positions, by their paths."""
        if self.position_bias == "continuous":
            return {}
        tables = [
            PositionTable((2 * height - 1, 2 * width - 1), kernel=self.pos_resize)
            for height, width in self.built_windows
        ]
        return {
            f"stages_{i}/blocks_{j}/attn/relative_bias": tables[i]
            for i, depth in enumerate(self.depths)
            for j in range(depth)
        }

    @property
    def norm_initial(self) -> float:
        """Initial scale of the norms of blocks; the authors' `_init_respostnorm`."""
        return 0.0 if self.norm_order == "branch" else 1.0

    def _block(self, stage: int, number: int, drop_path: float) -> Factory:
        """Return the factory of one block of a stage; every second one is shifted."""
        sides = self.pretrained_windows
        return block_factory(
            self,
            WindowAttention,
            block=remat_block(Block, self.remat, in_loop=False),
            heads=self.heads[stage],
            window=self.built_windows[stage],
            shifted=number % 2 == 1,
            pretrained_window=sides and (sides[stage], sides[stage]),
            mlp_width=int(self.width * 2**stage * self.mlp_ratio),
            drop_path=drop_path,
        )

    def _layer_norm(self) -> LayerNorm:
        return LayerNorm(epsilon=self.norm_eps, dtype=self.dtype)


_LARGEST_WINDOW = 2**12  # in tokens
_MOST_PAIRS = 2**27  # of tokens in all windows of a map: masks have a place for each


def _check_fields(model: Swin) -> None:
    """Raise ValueError for fields that are invalid or do not fit each other."""
    name = type(model).__name__
    validation.check_types(model)
    validation.check_hidden(name, "mlp_ratio", model.mlp_ratio, model.width)
    if len(model.depths) != len(model.heads):
        raise ValueError(
            f"{name}: depths={shown(model.depths)} has {len(model.depths)} stages, but "
            f"heads={shown(model.heads)} has {len(model.heads)}; use one number for each stage in "
            "both."
        )
    pretrained = model.pretrained_windows
    if pretrained is not None and len(pretrained) != len(model.depths):
        raise ValueError(
            f"{name}: pretrained_windows={shown(pretrained)} has {len(pretrained)} windows, but "
            f"depths={shown(model.depths)} has {len(model.depths)} stages; use one number for each."
        )
    if pretrained is not None and model.position_bias != "continuous":
        raise ValueError(
            f"{name}: pretrained_windows={shown(pretrained)} belongs to "
            'position_bias="continuous"; tables are resized instead, so leave it None.'
        )
    for i, heads in enumerate(model.heads):
        validation.check_multiple(
            name, f"width * {2**i} of stage {i}", model.width * 2**i, f"heads[{i}]", heads
        )
    window = math.prod(validation.pair(model.window))
    validation.check_tokens(name, model.grids()[0])
    tokens = math.prod(model.grids()[0])
    if min(window, tokens) > _LARGEST_WINDOW or min(window, tokens) * tokens > _MOST_PAIRS:
        raise ValueError(
            f"{name}: windows of window={model.window} on images of image_size={model.image_size} "
            f"have more than {_LARGEST_WINDOW:,} tokens each or {_MOST_PAIRS:,} pairs of them in "
            "all; use smaller windows or images."
        )
