"""Blocks of a model: where they are, what they do, and the grids of their tokens."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from vit_jax.models.attention.local import visible_tokens
from vit_jax.models.attention.windows import Windows

Sides = tuple[int, int]  # (height, width)


@dataclass(frozen=True)
class BlockInfo:
    """Residual block of a model, for images of one size.

    A model lists its blocks in the order of the forward pass: `model.block_infos(image_size)`.

    path: in the trees of parameters and of intermediates, `stages_1/blocks_0`; every block sows its
        output there as `out`, attention its weights as `attn/weights`.
    kind: "attention", "mlp" or "convolution": what mixes places.
    grid: (height, width) of its output, in places; of attention also that of the queries.
    patch_size: (height, width) of a place in pixels of the image.
    prefix: number of tokens before those of places.
    stage: of a pyramid; blocks of one stage have the same tokens.
    keys_grid, keys_prefix: of the keys of attention; None: those of the queries.
    windows: partition of the grid, for attention within windows.
    local_window: side of the square of places that a place attends to; None: no limit.
    frames: number of time steps of a clip, whose grids follow one another after the prefix.
    within_frames: whether attention sees one frame at a time: its weights have a row of the batch
        for each frame of each clip.
    is_layer: False for a block of a stem, before the layers that are counted.
    """

    path: str
    kind: str
    grid: Sides
    patch_size: Sides
    prefix: int = 0
    stage: int = 0
    keys_grid: Sides | None = None
    keys_prefix: int | None = None
    windows: Windows | None = None
    local_window: int | None = None
    frames: int = 1
    within_frames: bool = False
    is_layer: bool = True

    def visible(self) -> Bool[np.ndarray, "..."] | None:
        """Return which keys a query sees, `(queries, keys)`; None: all.

        Of windows it is `(windows, tokens, tokens)`.
        """
        if self.windows is not None:
            return self.windows.mask()
        if self.local_window is not None:
            return visible_tokens(self.grid, self.prefix, self.local_window)
        return None


class Stem(NamedTuple):
    """Layer whose output is the first map of a model: embeddings of separate patches.

    path: of its module. channels: of its output. stride: (height, width) in pixels.
    """

    path: tuple[str, ...]
    channels: int
    stride: Sides


def pyramid_blocks(
    size: Sides, depths: tuple[int, ...], strides: tuple[int, ...], kind: str
) -> tuple[BlockInfo, ...]:
    """Return the blocks `stages_{i}/blocks_{j}` of a pyramid of maps.

    Args:
        size: (height, width) of the image in pixels.
        depths: number of blocks of each stage.
        strides: of each stage, in units of the map before it; sides are rounded up.
    """
    stride, blocks = 1, []
    for stage, (depth, own) in enumerate(zip(depths, strides, strict=True)):
        stride *= own
        grid = (-(-size[0] // stride), -(-size[1] // stride))
        blocks += [
            BlockInfo(f"stages_{stage}/blocks_{j}", kind, grid, (stride, stride), stage=stage)
            for j in range(depth)
        ]
    return tuple(blocks)


def block_infos(model: Any, image_size: Sides | None = None) -> tuple[BlockInfo, ...]:
    """Return the blocks that a model lists with its method `block_infos`; empty without one."""
    own = getattr(type(model), "block_infos", None)
    return () if own is None else own(model, image_size)


def blocks_of_part(name: str, part: Any, image_size: Sides | None = None) -> tuple[BlockInfo, ...]:
    """Return the blocks of a model that is a part of another, under the part's name in it."""
    blocks = block_infos(part, image_size)
    return tuple(replace(block, path=f"{name}/{block.path}") for block in blocks)
