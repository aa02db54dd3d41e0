"""Data of a configuration: the sources of its splits, and the preprocessing of its images."""

import dataclasses
from collections.abc import Mapping, Sequence

import flax.linen as nn
from ml_collections import ConfigDict

from vit_jax.data import (
    Preprocessing,
    Source,
    TableOptions,
    open_source,
)
from vit_jax.models.validation import pair
from vit_jax.runs import ModelRecord
from vit_jax.training.setup import checks


def open_sources(
    config: ConfigDict,
    class_names: Sequence[str] | None,
    split: Mapping[str, Sequence[str]] | None,
) -> dict[str, Source]:
    """Open the splits that a configuration names; they must share no images."""
    sources = {
        name: open_source(
            config.dataset,
            config.data[name],
            data_dir=config.data.dir or None,
            manual_dir=config.data.manual_dir or None,
            holdout=config.data.holdout,
            split_seed=config.data.split_seed,
            class_names=class_names,
            saved=split,
            table=table_options(config),
            labels=config.data.labels,
        )
        for name in ("train", "validation", "test")
        if config.data[name] or name != "validation"
    }
    checks.check_splits(config, sources)
    return sources


def table_options(config: ConfigDict) -> TableOptions:
    """Return the options of a configuration for a file of labels."""
    data = config.data
    return TableOptions(data.path_column, data.label_column, data.image_dir)


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
