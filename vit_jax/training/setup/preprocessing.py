"""Preprocessing of a configuration."""

import dataclasses

import flax.linen as nn
from ml_collections import ConfigDict

from vit_jax.data import Preprocessing
from vit_jax.models.validation import pair
from vit_jax.runs import ModelRecord


def choose_preprocessing(
    config: ConfigDict, model: nn.Module, trained: ModelRecord | None
) -> Preprocessing:
    """Return the preprocessing of the configuration, with the initial weights' defaults."""
    size, channels = pair(model.image_size), model.in_channels
    if trained is None:
        base = Preprocessing(size, channels)
    else:
        base = trained.preprocessing.for_images(size, channels)
    named = {name: config.data[name] for name in PREPROCESSING_KEYS}
    named = {name: value for name, value in named.items() if value is not None}
    if named.get("resize") == "pad":  # padding shows the whole image, so there is no crop
        named.setdefault("crop", 1.0)
    return dataclasses.replace(base, **named)


# Keys of preprocessing in a configuration, besides those fixed by the model.
PREPROCESSING_KEYS = ("mean", "std", "crop", "interpolation", "resize", "color_management")
