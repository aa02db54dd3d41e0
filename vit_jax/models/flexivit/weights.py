"""Files of FlexiViTs, which have the names and shapes of a ViT's.

- big_vision's: the published kernels have 32 x 32 pixels and the tables 7 x 7 rows, for images of
  240 pixels. Nothing in a file says that it is none of a ViT/32: `origin="flexivit"` does.
- timm's `flexivit_*`: kernels were resized to 16 x 16 and tables to 15 x 15, and are stored so.

Sources: google-research/big_vision, `configs/proj/flexivit`; timm 1.0.31, `flexivit_small`, by
running it.
"""

import dataclasses
from typing import Any

from vit_jax.models.fields import pair
from vit_jax.weights import formats

# Published models are evaluated on the central 240 pixels of images of 272 x 272.
_PUBLISHED: dict[str, Any] = {"image_size": 240, "patch_size": 16}
PREPROCESSING = {**formats.HALF, "crop": 240 / 272, "interpolation": "bilinear", "resize": "squash"}

_OF_PUBLISHED_FILES = (32, 224)  # patch and image size of the ViT with such a kernel and table


def published(spec: formats.ModelSpec) -> formats.ModelSpec:
    """Return the spec of a ViT of big_vision as that of a FlexiViT at its published sizes."""
    return as_flexible(spec, **_PUBLISHED)


def as_flexible(spec: formats.ModelSpec, **fields: Any) -> formats.ModelSpec:
    """Return the spec of a ViT as that of a FlexiViT that stores its kernel and its table.

    fields: image and patch size in use; by default those of the ViT.
    """
    kernel, size = pair(spec.fields["patch_size"]), pair(spec.fields["image_size"])
    grid = tuple(side // unit for side, unit in zip(size, kernel, strict=True))
    stored = {
        "kernel_size": formats.side_or_pair(kernel),
        "table_grid": formats.side_or_pair(grid),
        "pos_resize": "bilinear",
    }
    fields = {**spec.fields, **stored, **fields}
    return dataclasses.replace(spec, fields=fields, architecture="FlexiViT")


def note(spec: formats.ModelSpec) -> tuple[str, ...]:
    """Return a note on a ViT of big_vision that may be a FlexiViT."""
    fields = spec.fields
    if (fields["patch_size"], fields["image_size"]) != _OF_PUBLISHED_FILES or fields["pos_on_cls"]:
        return ()
    return (
        "its kernel of 32 x 32 pixels and its table of 7 x 7 positions are those of a ViT/32 and "
        "of the published FlexiViTs; for one of these use origin='flexivit' (--origin=flexivit)",
    )
