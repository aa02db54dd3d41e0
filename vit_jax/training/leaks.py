"""Leakage check: evaluation images that the model was trained on, reported with the remedy."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from vit_jax.data import Source
from vit_jax.data.overlap import seen_images, training_record
from vit_jax.runs import RunDir


def records_of(source: str) -> list[dict[str, Any]]:
    """Return the training images of the model of a run folder; nothing for other weights."""
    folder = RunDir(source) if source and Path(source).expanduser().is_dir() else None
    return folder.read_training_images() if folder else []


def records_of_run(config: ConfigDict, train: Source) -> list[dict[str, Any]]:
    """Return the training images of a run and those of the weights it starts from."""
    return [training_record(train), *records_of(config.init_from)]


def leaks(config: ConfigDict, sources: Mapping[str, Source]) -> list[str]:
    """Return sentences on evaluation images that `init_from` or a teacher was trained on."""
    told = []
    for key, model in (
        ("init_from", config.init_from),
        ("distillation.teacher", config.distillation.teacher),
    ):
        records = records_of(model)
        for split in ("validation", "test"):
            if split in sources and (found := leak(sources[split], records)):
                told.append(
                    f"{key} = {model!r} was trained on {found}, so this run's accuracy on them"
                    f" will be too good; give both runs the same data.split_seed"
                    f" ({config.data.split_seed} here), or choose other images with data.{split}"
                )
    return told


def leak(source: Source, records: Sequence[Mapping[str, Any]]) -> str:
    """Return the number of images of a source that are in the records, in words; "" for none."""
    seen = seen_images(source, records)
    if not seen:
        return ""
    return (
        f"{len(seen):,} of the {len(source):,} {source.split} images (such as"
        f" {source.where(seen[0])})"
    )
