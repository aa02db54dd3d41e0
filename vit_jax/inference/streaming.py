"""Images read ahead, in threads, and handed on as batches of one size."""

import itertools
import math
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from vit_jax.data.images.decoding import ImageLike
from vit_jax.data.images.preprocess import Preprocessing
from vit_jax.data.paths import as_text
from vit_jax.errors import DecodeError
from vit_jax.inference.find_images import find_images

MOST_AHEAD = 4  # batches that are read ahead
READ_AHEAD_BYTES = 2**30  # of preprocessed images, where a batch is large
_AT_ONCE = 8  # images that a thread reads before the next one is handed to it

Named = tuple[str, ImageLike | DecodeError]


class ReadBatch(NamedTuple):
    """Preprocessed images and what they are called.

    names: of the images; fewer than `images` where the batch is padded.
    images: what cannot be read, and the padding, is black.
    errors: one for each name, None for an image that can be read.
    """

    names: list[str]
    images: UInt8[np.ndarray, "batch h w c"]
    errors: list[DecodeError | None]


def read_batches(
    images: ImageLike | Iterable[ImageLike | DecodeError],
    preprocess: Preprocessing,
    batch_size: int,
    threads: int | None = None,
) -> Iterator[ReadBatch]:
    """Read images of any number, in their order, with a bounded amount of memory.

    Args:
        images: as `Classifier.predict` takes them, or errors, which are handed on.
        preprocess: makes each image the model's size.
        batch_size: of all batches, the last included; where there are fewer images than that, the
            next power of two.
        threads: that decode; by default two for each core.
    """
    named = _named(images)
    chunk = list(itertools.islice(named, batch_size))
    size = batch_size
    if len(chunk) < batch_size:
        size = min(batch_size, 1 << max(len(chunk) - 1, 0).bit_length())
    shape = (size, *preprocess.size, preprocess.channels)
    ahead = min(max(1, READ_AHEAD_BYTES // math.prod(shape)), MOST_AHEAD)
    pool = ThreadPoolExecutor(threads or _threads())
    try:
        reading: deque[tuple[list[Named], list[Future]]] = deque()
        while chunk or reading:
            if chunk:
                parts = [chunk[i : i + _AT_ONCE] for i in range(0, len(chunk), _AT_ONCE)]
                futures = [pool.submit(_read, part, preprocess) for part in parts]
                reading.append(([name for name, _ in chunk], futures))
                chunk = list(itertools.islice(named, batch_size))
            if len(reading) > ahead or not chunk:
                names, futures = reading.popleft()
                yield _batch(names, itertools.chain(*(f.result() for f in futures)), shape)
    finally:
        pool.shutdown(cancel_futures=True)


def _threads() -> int:
    """Return how many threads read: while one waits for a disk, another computes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return 2 * (cores or 1)


def _named(images: ImageLike | Iterable[ImageLike | DecodeError]) -> Iterator[Named]:
    """Yield every image with what messages call it; folders are looked through."""
    for number, image in enumerate(_each(images), start=1):
        if isinstance(image, DecodeError):
            yield image.name, image
        elif isinstance(image, str | os.PathLike):
            for path in find_images([image]):
                yield (path.name if isinstance(path, DecodeError) else path), path
        else:
            yield f"image {number}", image


def _each(
    images: ImageLike | Iterable[ImageLike | DecodeError],
) -> Iterable[ImageLike | DecodeError]:
    if isinstance(images, np.ndarray):
        return images if images.ndim == 4 else [images]
    if isinstance(images, str | bytes | os.PathLike | Image.Image):
        return [images]
    return images


def _read(part: list[Named], preprocess: Preprocessing) -> list[np.ndarray | DecodeError]:
    found = []
    for name, image in part:
        if isinstance(image, DecodeError):
            found.append(image)
            continue
        try:
            found.append(preprocess(preprocess.decode(image, name=as_text(name))))
        except DecodeError as error:
            # Without its traceback, which would keep the pixels of its origin.
            found.append(DecodeError(error.name, error.cause))
    return found


def _batch(
    names: list[str], found: Iterable[np.ndarray | DecodeError], shape: tuple[int, ...]
) -> ReadBatch:
    images = np.zeros(shape, np.uint8)
    errors: list[DecodeError | None] = []
    for place, one in enumerate(found):
        errors.append(one if isinstance(one, DecodeError) else None)
        if errors[-1] is None:
            images[place] = one
    return ReadBatch(names, images, errors)
