"""The embedded dataset: 1,797 real handwritten digits, 8x8 pixels, no download.

The images are scikit-learn's copy of the UCI "Optical Recognition of Handwritten Digits" test
set (Alpaydin and Kaynak, 1998): scanned forms of 13 writers, reduced to 8x8 counts of 0 to 16.
Notable:

- `SklearnDigits` is an ordinary TFDS builder, so the digits are read like any other TFDS dataset;
- 1,437 training and 360 test digits, split within every class by one fixed permutation;
- `prepare` writes the dataset once as ArrayRecord, either completely or not at all.
"""

import contextlib
import io
import os
import shutil
from pathlib import Path

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

from vit_jax.errors import UserError, is_disk_full

TEST_EXAMPLES = (
    360  # a fifth of 1,797, rounded up, as scikit-learn's train_test_split(test_size=0.2)
)
SPLIT_SEED = 0


class SklearnDigits(tfds.core.GeneratorBasedBuilder):
    """TFDS builder `sklearn_digits`: `image` uint8 (8, 8, 1) and `label` 0 to 9."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description="The 1,797 handwritten digits of scikit-learn, split 1,437 to 360.",
            homepage="https://archive.ics.uci.edu/dataset/80",
            supervised_keys=("image", "label"),
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(8, 8, 1), encoding_format="png"),
                    "label": tfds.features.ClassLabel(names=[str(digit) for digit in range(10)]),
                }
            ),
        )

    def _split_generators(self, dl_manager):
        from sklearn.datasets import load_digits  # slow import, needed only once

        del dl_manager  # nothing is downloaded
        digits = load_digits()
        train, test = split_indices(digits.target)
        return {
            "train": self._generate_examples(digits, train),
            "test": self._generate_examples(digits, test),
        }

    def _generate_examples(self, digits, indices: np.ndarray):
        for index in indices:
            pixels = np.round(digits.images[index] * (255 / 16)).astype(np.uint8)
            # A PIL image, because TFDS encodes arrays with TensorFlow.
            yield (
                int(index),
                {
                    "image": Image.fromarray(pixels),
                    "label": int(digits.target[index]),
                },
            )


def split_indices(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the training and the test examples, stratified by class.

    Every class contributes its share of the 360 test examples. Shares are rounded down, and the
    remaining examples come from the classes with the largest remainders (Hamilton's method).
    """
    # RandomState, because numpy guarantees its stream for ever; that of Generator may change.
    shuffled = np.random.RandomState(SPLIT_SEED).permutation(len(labels))
    counts = np.bincount(labels)
    shares = counts * TEST_EXAMPLES / len(labels)
    quotas = np.floor(shares).astype(int)
    largest_remainders = np.argsort(quotas - shares, kind="stable")
    quotas[largest_remainders[: TEST_EXAMPLES - quotas.sum()]] += 1

    in_test = np.zeros(len(labels), bool)
    for label, quota in enumerate(quotas):
        in_test[shuffled[labels[shuffled] == label][:quota]] = True
    return shuffled[~in_test[shuffled]], shuffled[in_test[shuffled]]


def prepare(data_dir: str | os.PathLike | None = None) -> Path:
    """Write the digits as ArrayRecord if they are missing, and return their directory.

    Args:
      data_dir: root of the prepared TFDS datasets; `None` is TFDS's own (`~/tensorflow_datasets`,
        or `$TFDS_DATA_DIR`).

    Raises:
      UserError: the directory cannot be written, or the disk is full.
    """
    root = Path(data_dir or tfds.core.constants.DATA_DIR).expanduser()
    directory = root / SklearnDigits.name / str(SklearnDigits.VERSION)
    remains = directory.exists()
    if remains and _is_whole(directory):
        return directory
    try:
        if remains:  # TFDS would accept any directory of the right name as the dataset
            shutil.rmtree(directory)
        # TFDS writes beside that name and renames at the end: an interruption leaves nothing.
        tfds.disable_progress_bar()  # for this process; a second of work needs no progress bars
        builder = SklearnDigits(data_dir=str(root), file_format="array_record")
        with contextlib.redirect_stdout(io.StringIO()):  # TFDS reports downloads even without any
            builder.download_and_prepare(file_format="array_record")
    except Exception as error:  # the C++ writer raises various types for a full disk
        if _is_whole(directory):  # another process was faster
            return directory
        raise UserError(_cannot_write(root, error)) from error
    return directory


def _is_whole(directory: Path) -> bool:
    """Return whether both splits can be read to their last example."""
    undecoded = {"image": tfds.decode.SkipDecoding()}
    try:
        builder = tfds.builder_from_directory(str(directory))
        for split, count in {"train": 1797 - TEST_EXAMPLES, "test": TEST_EXAMPLES}.items():
            examples = builder.as_data_source(split=split, decoders=undecoded)
            if len(examples) != count:
                return False
            examples[0], examples[count - 1]
    except Exception:  # any failure of reading means that the dataset is incomplete
        return False
    return True


def _cannot_write(root: Path, error: Exception) -> str:
    full = is_disk_full(error)
    cause = "the disk is full" if full else f"{type(error).__name__}: {error}"
    remedy = "free some space there" if full else "make that directory writable"
    return (
        f"the digits dataset (under 1 MB) could not be written to {root}: {cause}; {remedy}, or"
        " set another directory with data.dir or the environment variable TFDS_DATA_DIR, then run"
        " the same command again"
    )
