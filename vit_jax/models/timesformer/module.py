"""TimeSformer: a ViT of clips, "Is Space-Time Attention All You Need for Video Understanding?"

Bertasius et al. 2021. Input is `(batch, frames, height, width, channels)`.

- Every frame is cut into patches as an image is. All frames share the table of places, and every
  patch also gets the vector of its frame. There is one class token, without a frame.
- `space_time="divided"`: each block attends along time, a place to itself in all frames, and then
  within each frame. `"joint"`: all tokens attend to each other, the blocks are those of a ViT.
  `"space"`: frames never meet, and their tokens are averaged after the last block; there are no
  vectors of frames, so that their order has no effect.
- With `tubelet_size` above 1 a patch is that of several neighbouring frames, a tubelet (Arnab et
  al. 2021, "ViViT", section 3.2). Its kernel has their channels side by side.
- Clips may have other sides and another number of frames than the model was built for: both tables
  are resized, to the nearest row as in the paper's repository.
"""

import math
from typing import Annotated, ClassVar

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models import validation
from vit_jax.models.attention.implementations import Implementation
from vit_jax.models.attention.multi_head import Attention
from vit_jax.models.block import Block, Remat, block_factory, remat_block, run_blocks
from vit_jax.models.description.blocks import BlockInfo, Stem
from vit_jax.models.description.receptive import Steps, global_steps
from vit_jax.models.description.roles import Blocks, Role, Roles, kernel_and_bias
from vit_jax.models.features import AttentionClassifier, Features
from vit_jax.models.fields import (
    Choice,
    Classes,
    Count,
    Depth,
    DtypeName,
    Factory,
    Hidden,
    Positive,
    Size,
    factory,
    pair,
)
from vit_jax.models.initializers import INIT_SCHEMES, SchemeName
from vit_jax.models.layers.mlp import Activation
from vit_jax.models.layers.norm import LayerNorm, NormType, make_norm
from vit_jax.models.layers.patch_embed import PatchEmbed
from vit_jax.models.layers.residual import drop_path_rates
from vit_jax.models.layers.tubelets import count_steps, join_frames
from vit_jax.models.positions.tables import PositionTable, ResizeMethod, resize_positions
from vit_jax.models.timesformer.attention import DividedBlock, FrameAttention, TimeBranch

SpaceTime = Annotated[str, Choice("divided", "joint", "space")]


class TimeSformer(AttentionClassifier):
    """TimeSformer; the defaults are TimeSformer-B/16 of 8 frames of 224 pixels, with 400 classes.

    `model.apply({"params": params}, clips)` takes float32 clips `(batch, frames, height, width,
    channels)`, already normalised, and gives float32 logits `(batch, classes)`; `method="features"`
    gives `Features`. Training wants `train=True` and, where a rate is not 0, the rng `"dropout"`.

    Parameters: those of a ViT, `time_embed (1, frames, width)`, and with "divided"
    `blocks_{i}/time/{norm, attention, dense}`.

    Raises:
        ValueError: at construction if fields do not fit each other, at the call if the clips do
            not fit the model; the sentence names the nearest valid sizes.
    """

    pool: ClassVar[str] = "cls"
    prefix: ClassVar[int] = 1

    num_classes: Classes = 400  # 0: no head, the pooled features come out
    image_size: Size = 224  # of a frame, that the table of places is built for; (h, w) too
    patch_size: Size = 16
    in_channels: Count = 3
    num_frames: Count = 8  # that the table of frames is built for
    tubelet_size: Count = 1  # frames of a patch
    space_time: SpaceTime = "divided"  # what attends to what
    width: Count = 768  # of a token
    depth: Depth = 12  # blocks
    heads: Count = 12
    mlp_ratio: Positive = 4.0  # hidden width of the MLP, as a multiple of width
    mlp_width: Hidden | None = None  # the same as a number
    qkv_bias: bool = True
    attention_dropout: float = 0.0  # on attention weights
    projection_dropout: float = 0.0  # after the attention's output projection
    mlp_dropout: float = 0.0  # in the MLP, after the activation and after fc2
    position_dropout: float = 0.0  # on tokens once places and frames are added
    drop_path: float = 0.0  # of the last block, from 0 linearly over depth; a whole clip's branch
    activation: Activation = "gelu"
    norm_type: NormType = "layer"
    norm_eps: Positive = 1e-6
    init_scheme: SchemeName = "trunc02"
    pos_resize: ResizeMethod = "torch-nearest"  # of both tables, as the authors do
    dtype: DtypeName = "float32"  # of the computation; parameters and logits are always float32
    attention_impl: Implementation = "auto"  # or "xla", "chunked", "cudnn", "pallas"
    remat: Remat = "none"  # the backward pass computes again "full" blocks, or all but "dots"

    def __post_init__(self):
        _check_fields(self)
        super().__post_init__()

    def setup(self):
        scheme, width = INIT_SCHEMES[self.init_scheme], self.width
        self.patch_embed = factory(PatchEmbed, self, patch_size=pair(self.patch_size))()
        self.cls_token = self.param("cls_token", scheme.class_token, (1, 1, width))
        rows = 1 + math.prod(self.built_grid)
        self.pos_embed = self.param("pos_embed", scheme.positions, (1, rows, width))
        if self.space_time != "space":
            zeros = nn.initializers.zeros_init()  # as the authors
            self.time_embed = self.param("time_embed", zeros, (1, self.time_steps, width))
        self.pos_dropout = nn.Dropout(self.position_dropout)
        self.blocks = [self._block(i)() for i in range(self.depth)]
        self.norm = make_norm(self)
        # The head computes in float32 whatever the blocks do: logits are what losses are made of.
        if self.num_classes:
            self.head = nn.Dense(self.num_classes, kernel_init=scheme.head)

    def features(
        self,
        images: Float[Array, "batch frames height width channels"],
        *,
        train: bool = False,
        attention_weights: bool = False,
    ) -> Features:
        """Return the class token and the patches of all frames after the last block.

        With `space_time="space"` the tokens are the means over frames, as of one image.
        """
        x, grid = self.embed(images, train=train)
        asked = {"train": train, "attention_weights": attention_weights, "grid": grid}
        x = run_blocks(self.blocks, x, (), **asked)
        if self.space_time == "space":
            x = x.reshape(images.shape[0], -1, *x.shape[1:]).mean(axis=1)
        frames = (x.shape[1] - 1) // math.prod(grid)
        x = self.norm(x)
        return Features(x, x[:, 0], grid, prefix=1, frames=frames)

    def embed(
        self, images: Float[Array, "batch frames height width channels"], *, train: bool = False
    ) -> tuple[Float[Array, "clips tokens width"], tuple[int, int]]:
        """Return the tokens that enter the first block, and the grid of a frame's patches.

        With `space_time="space"` every frame has its class token, `(batch * frames, 1 + patches,
        width)`; otherwise they are `(batch, 1 + frames * patches, width)`.
        """
        validation.check_images(self, images)
        validation.check_patches_fit(
            type(self).__name__, tuple(images.shape[2:4]), pair(self.patch_size)
        )
        batch, frames = images.shape[:2]
        steps = count_steps(type(self).__name__, frames, self.tubelet_size)
        x = self.patch_embed(join_frames(images, self.tubelet_size))
        grid = tuple(x.shape[1:3])
        positions = resize_positions(
            self.pos_embed, self.built_grid, grid, prefix=1, kernel=self.pos_resize
        ).astype(x.dtype)
        x = x.reshape(batch * steps, -1, self.width) + positions[:, 1:]
        token = self.cls_token.astype(x.dtype) + positions[:, :1]
        if self.space_time == "space":
            token = jnp.broadcast_to(token, (batch * steps, 1, self.width))
            return self._dropped(jnp.concatenate([token, x], axis=1), train), grid
        times = resize_positions(
            self.time_embed, (self.time_steps, 1), (steps, 1), kernel=self.pos_resize
        ).astype(x.dtype)
        x = x.reshape(batch, steps, -1, self.width) + times[:, :, None]
        token = jnp.broadcast_to(token, (batch, 1, self.width))
        x = jnp.concatenate([token, x.reshape(batch, -1, self.width)], axis=1)
        return self._dropped(x, train), grid

    def _dropped(
        self, x: Float[Array, "clips tokens width"], train: bool
    ) -> Float[Array, "clips tokens width"]:
        return self.pos_dropout(x, deterministic=not train)

    def _block(self, number: int) -> Factory:
        """Return the factory of a block."""
        rate = drop_path_rates(self.drop_path, self.depth)[number]
        fields = {"mlp_width": self.hidden_width, "drop_path": rate}
        if self.space_time != "divided":
            block = remat_block(Block, self.remat, in_loop=False)
            return block_factory(self, block=block, **fields)
        # All branches along time but the first add nothing at first, as the authors have it.
        time = factory(
            TimeBranch,
            self,
            attention=factory(Attention, self),
            drop_path=rate,
            starts_at_zero=number > 0,
        )
        block = remat_block(DividedBlock, self.remat, in_loop=False)
        return block_factory(self, FrameAttention, block=block, time=time, **fields)

    def roles(self) -> Roles:
        """Return the roles of the parameters, in the order of the forward pass."""
        divided = self.space_time == "divided"
        return {
            "patch_embed": PatchEmbed.ROLES,
            "cls_token": Role.TOKEN,
            "pos_embed": Role.POSITION_TABLE,
            "time_embed": Role.POSITION_TABLE,
            "blocks_*": Blocks(DividedBlock.ROLES if divided else Block.ROLES),
            "norm": LayerNorm.ROLES,
            "head": kernel_and_bias(Role.HEAD),
        }

    def block_infos(self, image_size: int | tuple[int, int] | None = None) -> tuple[BlockInfo, ...]:
        """Return the blocks, for frames of a size in pixels; None: the model's own."""
        (height, width), patch = pair(image_size or self.image_size), pair(self.patch_size)
        grid = (height // patch[0], width // patch[1])
        more = {"frames": self.time_steps, "within_frames": self.space_time == "divided"}
        more = {} if self.space_time == "space" else more
        return tuple(
            BlockInfo(f"blocks_{i}", "attention", grid, patch, 1, **more) for i in range(self.depth)
        )

    def receptive_steps(
        self, image_size: int | tuple[int, int] | None = None, axis: int = 0
    ) -> Steps:
        """Return the steps to every block's output: attention sees whole frames."""
        blocks = self.block_infos(image_size)
        return global_steps((block.path, block.patch_size[axis]) for block in blocks)

    def starts_from(self) -> dict[str, str | None]:
        """Return where parameters begin that weights of images lack, by path; None: at zero.

        Attention along time begins as that within frames, and adds nothing at first (the paper's
        repository, `timesformer/models/helpers.py`; section 4 of the paper).
        """
        begin: dict[str, str | None] = {} if self.space_time == "space" else {"time_embed": None}
        if self.space_time != "divided":
            return begin
        names = ["qkv/kernel", *["qkv/bias"][: self.qkv_bias], "out/kernel", "out/bias"]
        for i in range(self.depth):
            block = f"blocks_{i}"
            begin |= {f"{block}/time/attention/{name}": f"{block}/attn/{name}" for name in names}
            begin |= {
                f"{block}/time/norm/{name}": f"{block}/norm1/{name}" for name in ("scale", "bias")
            }
            begin |= {f"{block}/time/dense/{name}": None for name in ("kernel", "bias")}
        return begin

    @property
    def patch_stem(self) -> Stem:
        """The patch embedding."""
        return Stem(("patch_embed",), self.width, pair(self.patch_size))

    @property
    def hidden_width(self) -> int:
        """Width of the hidden layer of the MLPs."""
        return self.mlp_width or int(self.width * self.mlp_ratio)

    @property
    def built_grid(self) -> tuple[int, int]:
        """`(height, width)` in patches of the frames that the table of places is made for."""
        (height, width), (rows, columns) = map(pair, (self.image_size, self.patch_size))
        return height // rows, width // columns

    @property
    def time_steps(self) -> int:
        """Rows of the table of frames."""
        return self.num_frames // self.tubelet_size

    @property
    def position_tables(self) -> dict[str, PositionTable]:
        """The tables that can be resized, by their paths: of places, and of frames."""
        tables = {"pos_embed": PositionTable(self.built_grid, 1, self.pos_resize)}
        if self.space_time != "space":
            tables["time_embed"] = PositionTable((self.time_steps, 1), 0, self.pos_resize)
        return tables


def _check_fields(model: TimeSformer) -> None:
    """Raise ValueError for fields that are invalid or do not fit each other."""
    name = type(model).__name__
    validation.check_types(model)
    if model.mlp_width is None:
        validation.check_hidden(name, "mlp_ratio", model.mlp_ratio, model.width)
    validation.check_patches_fit(name, pair(model.image_size), pair(model.patch_size))
    validation.check_multiple(name, "width", model.width, "heads", model.heads)
    steps = count_steps(name, model.num_frames, model.tubelet_size)
    height, width = model.built_grid
    validation.check_tokens(name, (steps * height, width))
