"""NaFlex: a ViT for images of any aspect ratio within a budget of tokens (Tschannen et al. 2025).

    model = create_model("NaFlexViT-B/16", num_classes=10)
    logits = model.apply(variables, {"patches": patches, "grid": grid})

- Images come as sequences of patches, `patches (batch, budget, patch * patch * channels)` with the
  pixels of each in the order (row, column, channel), and `grid (batch, 2)`, rows and columns of
  patches. The first rows * columns patches are the image in raster order, the others are padding:
  no token attends to them, and no pooling reads them.
- The position table is resized to the grid of each image, by two small matrices that are computed
  from the grid. All shapes are fixed by the budget, so that one compiled program serves every
  aspect ratio.
- Plain images `(batch, height, width, channels)` have one grid for all and no padding, and give the
  same numbers as their patches.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from vit_jax.errors import shown
from vit_jax.models import validation
from vit_jax.models.features import Features
from vit_jax.models.fields import Size, check_types, pair
from vit_jax.models.layers.mlp import Activation
from vit_jax.models.positions.tables import ResizeMethod
from vit_jax.models.vit.module import Pool, ViT

PARTS = ("patches", "grid")  # of images that are sequences of patches
Packed = Mapping[str, Array]


class NaFlexViT(ViT):
    """ViT for images of any aspect ratio; the defaults are the image tower of SigLIP 2 NaFlex B/16.

    `image_size` is that of the position table, 16 x 16 patches by default; it limits neither the
    budget nor the grids. `key_mask` of `features` is made from the grids. `Features.grid` of
    sequences of patches is `(1, budget)`.

    Raises:
        ValueError: at construction for positions that are neither a learned table, resized
            bilinearly, nor none, and for attention that cannot mask padding; at the call for
            patches or grids that do not fit the model, as far as their numbers are known.

    Source: Tschannen et al. 2025, "SigLIP 2", section 2.4.2 (NaFlex), after Dehghani et al. 2023,
    "Patch n' Pack" (NaViT); agrees with transformers' `Siglip2VisionModel`.
    """

    takes_patches: ClassVar[bool] = True  # images may be sequences of patches

    image_size: Size = 256
    pool: Pool = "map"
    activation: Activation = "gelu_tanh"
    pos_resize: ResizeMethod = "bilinear"

    def __post_init__(self):
        check_types(self)
        needed = {
            "positions": ("learned", "none"),
            "pos_resize": ("bilinear",),
            "rotary": ("none",),
            "attention_type": ("softmax",),
        }
        for field, values in needed.items():
            if getattr(self, field) not in values:
                raise ValueError(
                    f"{type(self).__name__}: {field}={getattr(self, field)!r} does not support a "
                    f"grid of its own for each image; use {' or '.join(map(repr, values))}."
                )
        super().__post_init__()

    def features(
        self,
        images: Float[Array, "batch height width channels"] | Packed,
        *,
        train: bool = False,
        attention_weights: bool = False,
        key_mask: Bool[Array, "batch patches"] | None = None,
    ) -> Features:
        """Return all tokens after the last block, and the pooled vector, in the compute type.

        Tokens of padding are there too, and mean nothing.
        """
        if isinstance(images, Mapping):
            check_packed(self, images)
            mask = mask_of_grids(images["grid"], images["patches"].shape[1])
            key_mask = mask if key_mask is None else mask & key_mask
        asked = {"train": train, "attention_weights": attention_weights}
        return super().features(images, key_mask=key_mask, **asked)

    def embed(
        self,
        images: Float[Array, "batch height width channels"] | Packed,
        *,
        train: bool = False,
    ) -> tuple[Float[Array, "batch tokens width"], tuple[int, int]]:
        """Images to the tokens that enter the first block, and the grid of their patches."""
        if not isinstance(images, Mapping):
            return super().embed(images, train=train)
        check_packed(self, images)
        patches, grids = images["patches"], images["grid"]
        batch, budget, _ = patches.shape
        height, width = pair(self.patch_size)
        # A column of patches, which is an image of one patch in width.
        column = patches.reshape(batch, budget * height, width, self.in_channels)
        x = self._embed_patches(column, train=train).reshape(batch, budget, -1)
        positions = None
        if self.positions == "learned":
            prefix = self.num_prefix_positions
            front, table = self.pos_embed[:, :prefix], self.pos_embed[0, prefix:]
            of_grids = positions_of_grids(table, self.built_grid, grids, budget)
            front = jnp.broadcast_to(front, (batch, *front.shape[1:]))
            positions = jnp.concatenate([front, of_grids], axis=1)
        return self._with_positions(x, positions, train), (1, budget)


def mask_of_grids(grids: Int[Array, "batch 2"], budget: int) -> Bool[Array, "batch budget"]:
    """Return which patches of a sequence belong to an image; the others are padding."""
    return jnp.arange(budget) < (grids[:, :1] * grids[:, 1:])


def positions_of_grids(
    table: Float[Array, "rows width"],
    built_grid: tuple[int, int],
    grids: Int[Array, "batch 2"],
    budget: int,
) -> Float[Array, "batch budget width"]:
    """Return a table of positions resized to the grid of each image, bilinearly with antialiasing.

    Agrees with `resize_positions(kernel="bilinear")` for each grid. Padding gets some position.

    Args:
        table: one row for each patch of `built_grid`, in raster order.
        built_grid: (height, width) in patches.
        grids: (height, width) in patches of each image.
        budget: length of the sequences.
    """
    numbers, columns = jnp.arange(budget), grids[:, 1:]
    by_row = resize_weights(built_grid[0], grids[:, :1], numbers // columns)
    by_column = resize_weights(built_grid[1], columns, numbers % columns)
    weights = by_row[..., :, None] * by_column[..., None, :]
    weights = weights.reshape(*weights.shape[:2], -1)
    exact = jax.lax.Precision.HIGHEST
    resized = jnp.einsum("bnp,pw->bnw", weights, table.astype(jnp.float32), precision=exact)
    return resized.astype(table.dtype)


def resize_weights(
    source: int, targets: Int[Array, "batch 1"], places: Int[Array, "batch places"]
) -> Float[Array, "batch places source"]:
    """Return the weights of `source` numbers for places in a row of `targets` numbers.

    They are rows of `resize_matrix("bilinear", source, target)`, where the target may be traced.
    """
    scale = source / targets[..., None].astype(jnp.float32)
    samples = (places[..., None] + 0.5) * scale - 0.5
    # A place beyond the target is of padding; the last one keeps its weights from being 0 / 0.
    samples = jnp.minimum(samples, source - 0.5)
    distances = jnp.abs(samples - jnp.arange(source)) / jnp.maximum(scale, 1.0)
    weights = jnp.maximum(0.0, 1.0 - distances)
    return weights / weights.sum(axis=-1, keepdims=True)


def check_packed(model: NaFlexViT, images: Packed) -> None:
    """Raise ValueError for sequences of patches that a model cannot take."""
    name = type(model).__name__
    if set(images) != set(PARTS):
        raise ValueError(
            f"{name}: images in patches are a mapping of 'patches' and 'grid', got "
            f"{', '.join(map(shown, images)) or 'nothing'}; pass both and nothing else."
        )
    patches, grids = images["patches"], images["grid"]
    height, width = pair(model.patch_size)
    pixels = height * width * model.in_channels
    if patches.ndim != 3 or patches.shape[2] != pixels:
        raise ValueError(
            f"{name}: patches of {height} x {width} pixels and {model.in_channels} channels have "
            f"the shape (batch, budget, {pixels}), got {tuple(patches.shape)}; cut the images into "
            "patches of this size."
        )
    if not patches.shape[1]:
        raise ValueError(
            f"{name}: patches of shape {tuple(patches.shape)} have a budget of 0 tokens; a budget "
            "is at least 1."
        )
    if not jnp.issubdtype(patches.dtype, jnp.floating):
        raise ValueError(
            f"{name}: patches are float32 and already normalised, got {patches.dtype}; "
            "scale and normalise them first."
        )
    if grids.shape != (patches.shape[0], 2) or not jnp.issubdtype(grids.dtype, jnp.integer):
        raise ValueError(
            f"{name}: the grids of {patches.shape[0]} images are whole numbers of the shape "
            f"({patches.shape[0]}, 2), rows and columns, got {grids.dtype} of shape "
            f"{tuple(grids.shape)}."
        )
    validation.check_tokens(name, (1, patches.shape[1]))
    if not isinstance(grids, jax.core.Tracer):
        _check_grids(name, grids, patches.shape[1])


def _check_grids(name: str, grids: Any, budget: int) -> None:
    """Raise ValueError for a grid that is empty or larger than the budget."""
    for number, (rows, columns) in enumerate(grids.tolist()):
        if rows < 1 or columns < 1 or rows * columns > budget:
            raise ValueError(
                f"{name}: the grid of image {number} is {rows} x {columns} patches, but it must "
                f"have at least 1 x 1 and at most {budget} of them, the budget; resize the image, "
                "or use a larger budget."
            )
