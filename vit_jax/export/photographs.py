"""Real images on which an exported graph is compared with its model.

By default they are parts of the two photographs that come with scikit-learn, of several sizes and
aspect ratios, so that every machine has them.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from vit_jax.data.images.decoding import decode
from vit_jax.data.images.preprocess import Preprocessing
from vit_jax.errors import UserError
from vit_jax.inference.streaming import read_batches

MOST = 16
# Top, left, bottom and right of parts, in shares of a photograph.
_PARTS = ((0, 0, 1, 1), (0, 0, 0.5, 1), (0.2, 0.3, 0.9, 0.7), (0.5, 0.5, 0.8, 0.7))


def photographs(
    preprocessing: Preprocessing, images: Sequence[str] = ()
) -> UInt8[np.ndarray, "batch h w c"]:
    """Return preprocessed images, at most 16.

    Args:
        preprocessing: of the model.
        images: files and folders, of which the first are taken; empty: those of scikit-learn.

    Raises:
        UserError: there are no images, or one cannot be read.
    """
    if not images:
        return np.stack([preprocessing(part) for part in _parts(preprocessing)])
    batch = next(read_batches(images, preprocessing, MOST), None)
    if batch is None or not batch.names:
        raise UserError(f"{', '.join(images)}: there are no images to compare on; give others")
    for error in filter(None, batch.errors):
        raise error
    return batch.images[: len(batch.names)]


def _parts(preprocessing: Preprocessing) -> list[UInt8[np.ndarray, "h w c"]]:
    """Return parts of the photographs as a decoder gives them: images, or clips that move."""
    [package] = importlib.util.find_spec("sklearn").submodule_search_locations
    found = []
    for name in ("china.jpg", "flower.jpg"):
        whole = decode(Path(package, "datasets", "images", name))
        if preprocessing.channels not in (1, 3):
            whole = whole[..., np.arange(preprocessing.channels) % 3]
        height, width, _ = whole.shape
        for top, left, bottom, right in _PARTS:
            rows = slice(int(top * height), int(bottom * height))
            part = whole[rows, int(left * width) : int(right * width)]
            frames = [np.roll(part, 4 * i, axis=1) for i in range(preprocessing.frames)]
            found.append(np.stack(frames) if frames else part)
    return found
