"""ViTDet: a plain ViT as the backbone of detectors (Li et al. 2022).

- Most blocks attend within windows, a few to the whole map; both have decomposed relative positions
  beside the table of the tokens (`attention`).
- There is no class token and no final norm. The table of positions has a row for a class token that
  nothing reads, as in the authors' files and transformers': it comes from pre-training.
- `features` gives the maps of the pyramid, of strides 4, 8, 16 and 32 with patches of 16 pixels,
  which decoders read.
- With classes it is a classifier, of the mean of the last map.
"""

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
from flax.traverse_util import flatten_dict
from jaxtyping import Array, Float

from vit_jax.errors import shown
from vit_jax.models import validation
from vit_jax.models.attention.multi_head import Attention
from vit_jax.models.attention.windows import Windows
from vit_jax.models.description.blocks import BlockInfo
from vit_jax.models.description.receptive import Everything, Steps, WindowStep
from vit_jax.models.description.roles import Roles
from vit_jax.models.features import Features
from vit_jax.models.fields import Classes, Count, Factory, Size
from vit_jax.models.initializers import SchemeName
from vit_jax.models.inputs import trace_init
from vit_jax.models.positions.tables import PositionTable, ResizeMethod
from vit_jax.models.vit.module import Pool, ViT
from vit_jax.models.vitdet.attention import RESIZE, TABLES, DecomposedPositions, MapAttention
from vit_jax.models.vitdet.pyramid import Pyramid

# Fields of ViT that have one value here.
_NEEDED = {
    "class_token": (None, False),
    "registers": (0,),
    "distilled": (False,),
    "attention_type": ("softmax",),
    "rotary": ("none",),
    "scan_layers": (False,),
    "patch_dropout": (0.0,),
    "tome_r": (0,),
    "keep_ratio": (1.0,),
}
_POSITIONS = ("learned", "sincos2d", "none")


class ViTDet(ViT):
    """Plain ViT with windows and a pyramid; the defaults are the backbone of ViTDet-B.

    Its fields are those of `ViT`, without prefix tokens, and those below. Parameters beside those
    of a ViT: `blocks_{i}/attn/{relative_rows, relative_columns}`, and `pyramid`.

    Raises:
        ValueError: at construction or at the call, as `ViT`; also for fields that ViTDet has not,
            and images too small for the pyramid.
    """

    num_classes: Classes = 0
    image_size: Size = 1024
    position_size: Size = 224  # pixels of the images that the table of tokens is for
    window: Count = 14  # tokens along each side
    global_blocks: tuple[int, ...] = (2, 5, 8, 11)  # that attend to the whole map, from 0
    relative_positions: bool = True
    pyramid_width: Count | None = 256  # channels of all its maps; None: no pyramid
    pool: Pool = "mean"
    final_norm: bool = False
    init_scheme: SchemeName = "trunc02"
    pos_resize: ResizeMethod = "torch-bicubic"

    attention_class: ClassVar[type[Attention]] = MapAttention
    # A run that starts from a ViT keeps its own way in these.
    not_inherited: ClassVar[tuple[str, ...]] = (
        *("positions", "class_token", "registers", "distilled", "pool", "pool_norm"),
        *("pos_on_cls", "final_norm", "pos_resize"),
    )

    def __post_init__(self):
        _check_fields(self)
        super().__post_init__()

    def setup(self):
        super().setup()
        if self.pyramid_width:
            self.pyramid = Pyramid(self.pyramid_width, self.dtype)

    def features(
        self,
        images: Float[Array, "batch height width channels"],
        *,
        train: bool = False,
        attention_weights: bool = False,
        blocks: tuple[int, ...] = (),
    ) -> Features:
        """Return the tokens of the last map, their mean, and the maps of the pyramid.

        blocks: numbers of blocks, from 0, whose outputs are given too.
        """
        asked = {"train": train, "attention_weights": attention_weights, "blocks": blocks}
        found = super().features(images, **asked)
        if not self.pyramid_width:
            return found
        if min(found.grid) < 2:
            raise ValueError(
                f"{type(self).__name__}: images of {images.shape[1]} x {images.shape[2]} pixels "
                "(height x width) leave nothing of the coarsest map; use at least two patches a "
                f"side, patch_size={shown(self.patch_size)}."
            )
        batch, _, width = found.tokens.shape
        return found.replace(stages=self.pyramid(found.tokens.reshape(batch, *found.grid, width)))

    def starts_from(self) -> dict[str, str | None]:
        """Return where parameters begin that weights of a ViT lack, by path.

        None: at zero, as relative positions; its own path: at its initial value.
        """
        blocks = range(self.depth if self.relative_positions else 0)
        begin: dict[str, str | None] = {
            f"blocks_{i}/attn/{name}": None for i in blocks for name in TABLES
        }
        if not self.pyramid_width:
            return begin
        pyramid, map_ = Pyramid(self.pyramid_width, parent=None), jnp.zeros((1, 2, 2, self.width))
        shapes = trace_init(pyramid, map_)["params"]
        paths = (f"pyramid/{path}" for path in flatten_dict(shapes, sep="/"))
        return {**begin, **{path: path for path in paths}}

    def roles(self) -> Roles:
        """Return the roles of the parameters, in the order of the forward pass."""
        roles, head = dict(super().roles()), {}
        for name in ("pre_logits", "head"):
            head[name] = roles.pop(name)
        return {**roles, "pyramid": Pyramid.ROLES, **head}

    def block_infos(self, image_size: int | tuple[int, int] | None = None) -> tuple[BlockInfo, ...]:
        """Return the blocks, for images of a size in pixels; None: the model's own."""
        window = (self.window, self.window)
        return tuple(
            block
            if i in self.global_blocks
            else dataclasses.replace(block, windows=Windows(block.grid, window))
            for i, block in enumerate(super().block_infos(image_size))
        )

    def receptive_steps(
        self, image_size: int | tuple[int, int] | None = None, axis: int = 0
    ) -> Steps:
        """Return the steps to every block's output."""
        path, steps = self.stem_steps(axis), {}
        for block in self.block_infos(image_size):
            step = WindowStep(block.grid[axis], self.window) if block.windows else Everything()
            path = [*path, step]
            steps[block.path] = path
        return steps

    @property
    def built_grid(self) -> tuple[int, int]:
        """`(height, width)` in patches of the image size the position table is made for."""
        sides = map(validation.pair, (self.position_size, self.patch_size))
        return tuple(side // patch for side, patch in zip(*sides, strict=True))

    @property
    def num_prefix_positions(self) -> int:
        """Rows of the table of positions before those of patches: one, which nothing reads."""
        return int(self.positions == "learned")

    @property
    def position_tables(self) -> dict[str, PositionTable]:
        """The tables that can be resized to another grid, by their paths."""
        tables = super().position_tables
        for i in range(self.depth if self.relative_positions else 0):
            for name, side in zip(TABLES, self._table_grid(i), strict=True):
                grid = (2 * side - 1, 1)
                tables[f"blocks_{i}/attn/{name}"] = PositionTable(grid, kernel=RESIZE)
        return tables

    def _table_grid(self, number: int) -> tuple[int, int]:
        """Return the grid that a block's tables of relative positions are for."""
        return super().built_grid if number in self.global_blocks else (self.window, self.window)

    def _block(self, number: int, **more: Any) -> Factory:
        kind = "decomposed" if self.relative_positions else "none"
        positions = DecomposedPositions(kind, self._table_grid(number))
        window = None if number in self.global_blocks else self.window
        return super()._block(number, window=window, positions=positions, **more)


def _check_fields(model: ViTDet) -> None:
    """Raise ValueError for fields of a ViT that ViTDet has not, and for invalid ones of its own."""
    name = type(model).__name__
    validation.check_types(model)
    for field, values in _NEEDED.items():
        if getattr(model, field) not in values:
            raise ValueError(
                f"{name}: {field}={shown(getattr(model, field))} is not possible with windows; use "
                f"{values[-1]!r}, or a ViT."
            )
    if model.positions not in _POSITIONS:
        raise ValueError(
            f"{name}: positions={model.positions!r} is none of the tokens of a map; use one of "
            f"{', '.join(map(repr, _POSITIONS))}, and relative_positions beside it."
        )
    if model.pool not in ("mean", "map"):
        raise ValueError(
            f"{name}: pool={model.pool!r} is for a ViT; use 'mean' or 'map', since there is no "
            "class token."
        )
    if list(model.global_blocks) != sorted(set(model.global_blocks)):
        raise ValueError(
            f"{name}: global_blocks must be in ascending order, each once, such as (2, 5, 8, 11)."
        )
    for i, number in enumerate(model.global_blocks):
        if not 0 <= number < model.depth:
            raise ValueError(
                f"{name}: global_blocks[{i}]={number} is no block; their numbers are 0 to "
                f"{model.depth - 1}."
            )
    patch = validation.pair(model.patch_size)
    validation.check_patches_fit(name, validation.pair(model.position_size), patch)
    if model.pyramid_width and model.width % 4:
        validation.check_multiple(name, "width", model.width, "the channels of the pyramid", 4)
