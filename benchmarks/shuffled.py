"""Data whose training images have the labels of others: nothing can be learned from them.

    python train.py --config=configs/language/digits.py --workdir=runs/shuffled \
        --config.plugins=benchmarks.shuffled --config.dataset=captions:shuffled:0:digits

The source `shuffled:SEED:DATASET` permutes the labels of the training split, and with them the
captions that are made of them; the test split is as it was. What is right more often than by
chance on the test images has another source than the pairs.
"""

from collections.abc import Sequence

import numpy as np

from vit_jax.data import Dataset, Source, open_source, register_source
from vit_jax.errors import UserError


class Relabelled(Sequence):
    """Examples of a source with other labels."""

    def __init__(self, source: Source, labels: np.ndarray):
        self._source, self.labels = source, labels

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int):
        return {**self._source[index], "label": int(self.labels[index])}


def open_shuffled(argument: str) -> Dataset:
    """Return the dataset of `SEED:DATASET`. Raises UserError for another form."""
    seed, _, dataset = argument.partition(":")
    if not seed.isdecimal() or not dataset:
        raise UserError(f"shuffled:{argument} cannot be read; use shuffled:SEED:DATASET")
    train, test = (open_source(dataset, split) for split in ("train", "test"))
    others = np.random.RandomState(int(seed)).permutation(train.labels)
    return Dataset(
        splits={"train": Relabelled(train, others), "test": Relabelled(test, test.labels)},
        features=train.features,
        class_names=train.class_names,
        version=seed,
        in_memory=train.in_memory,
    )


register_source("shuffled", open_shuffled)
