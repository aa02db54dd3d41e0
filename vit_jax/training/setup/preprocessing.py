"""Preprocessing of a configuration."""

import dataclasses

import flax.linen as nn
from ml_collections import ConfigDict

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.inputs import num_frames
from vit_jax.models.validation import pair
from vit_jax.runs import ModelRecord


def choose_preprocessing(
    config: ConfigDict, model: nn.Module, trained: ModelRecord | None
) -> Preprocessing:
    """Return the preprocessing of the configuration, with the initial weights' defaults."""
    size, channels = pair(model.image_size), model.in_channels
    if trained is None:
        base = Preprocessing(size, channels, frames=num_frames(model))
    else:
        base = trained.preprocessing.for_images(size, channels, frames=num_frames(model))
    named = {name: config.data[name] for name in PREPROCESSING_KEYS}
    named = {name: value for name, value in named.items() if value is not None}
    if named.get("max_tokens", base.max_tokens):
        named.setdefault("crop", 1.0)
        named["patch_size"] = _patch_of(model, named.get("max_tokens", base.max_tokens))
    if named.get("resize") == "pad":  # padding shows the whole image, so there is no crop
        named.setdefault("crop", 1.0)
    return dataclasses.replace(base, **named)


# Keys of preprocessing in a configuration, besides those fixed by the model.
PREPROCESSING_KEYS = (
    *("mean", "std", "crop", "interpolation", "resize", "color_management"),
    "max_tokens",
)


def _patch_of(model: nn.Module, max_tokens: int) -> tuple[int, int]:
    """Return the patch size of a model for images of any aspect ratio; UserError for others."""
    if not getattr(model, "takes_patches", False):
        raise UserError(
            f"data.max_tokens = {max_tokens} keeps the aspect ratio of each image, and "
            f"{type(model).__name__} takes images of one size; use a NaFlexViT, such as "
            "--config.model.name=NaFlexViT-B/16, or --config.data.max_tokens=0"
        )
    return pair(model.patch_size)
