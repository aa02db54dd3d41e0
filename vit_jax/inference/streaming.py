"""Prefetching of images in threads, in batches of one size."""

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
from vit_jax.inference.find_images import find_clips, find_images
from vit_jax.process_setup import cores

MOST_AHEAD = 4  # prefetched batches
READ_AHEAD_BYTES = 2**30  # limit of prefetched images
_AT_ONCE = 8  # images per task of a thread

Named = tuple[str, ImageLike | DecodeError]
_Sized = tuple[np.ndarray, tuple[int, int]]  # preprocessed pixels, and the size before


class ReadBatch(NamedTuple):
    """Preprocessed images with their names.

    names: of the images; fewer than `images` if the batch is padded.
    images: unreadable images and padding are black.
    errors: one for each name; None for a readable image.
    sizes: (height, width) in pixels of each image in its file; (0, 0) of an unreadable one.
    """

    names: list[str]
    images: UInt8[np.ndarray, "batch h w c"]
    errors: list[DecodeError | None]
    sizes: list[tuple[int, int]]


def read_batches(
    images: ImageLike | Iterable[ImageLike | DecodeError],
    preprocess: Preprocessing,
    batch_size: int,
    threads: int | None = None,
) -> Iterator[ReadBatch]:
    """Yield batches of any number of images, in order, within a limited amount of memory.

    Args:
        images: as for `Classifier.predict`, or errors, which are passed on.
        preprocess: preprocessing of the model.
        batch_size: size of all batches including the last; with fewer images in total, the next
            power of two.
        threads: number of decoding threads; by default two per core.
    """
    named = named_images(images, clips=bool(preprocess.frames))
    chunk = list(itertools.islice(named, batch_size))
    size = batch_size
    if len(chunk) < batch_size:
        size = min(batch_size, 1 << max(len(chunk) - 1, 0).bit_length())
    shape = (size, *preprocess.shape)
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
    """Return the number of reading threads: some compute while others wait for a disk."""
    return 2 * cores()


def named_images(
    images: ImageLike | Iterable[ImageLike | DecodeError], clips: bool = False
) -> Iterator[Named]:
    """Yield every image, or every clip, with its name in messages; folders are searched."""
    find, what = (find_clips, "clip") if clips else (find_images, "image")
    for number, image in enumerate(_each(images, clips), start=1):
        if isinstance(image, DecodeError):
            yield image.name, image
        elif isinstance(image, str | os.PathLike):
            for path in find([image]):
                yield (path.name if isinstance(path, DecodeError) else path), path
        else:
            yield f"{what} {number}", image


def _each(
    images: ImageLike | Iterable[ImageLike | DecodeError], clips: bool
) -> Iterable[ImageLike | DecodeError]:
    if isinstance(images, np.ndarray):
        return images if images.ndim == 4 + clips else [images]
    if isinstance(images, str | bytes | os.PathLike | Image.Image):
        return [images]
    return images


def _read(part: list[Named], preprocess: Preprocessing) -> list[_Sized | DecodeError]:
    found: list[_Sized | DecodeError] = []
    for name, image in part:
        if isinstance(image, DecodeError):
            found.append(image)
            continue
        try:
            pixels = preprocess.decode(image, name=as_text(name))
            found.append((preprocess(pixels), pixels.shape[:2]))
        except DecodeError as error:
            # Without its traceback, which would keep pixels in memory.
            found.append(DecodeError(error.name, error.cause))
    return found


def _batch(
    names: list[str], found: Iterable[_Sized | DecodeError], shape: tuple[int, ...]
) -> ReadBatch:
    images = np.zeros(shape, np.uint8)
    errors: list[DecodeError | None] = []
    sizes = []
    for place, one in enumerate(found):
        failed = isinstance(one, DecodeError)
        errors.append(one if failed else None)
        sizes.append((0, 0) if failed else one[1])
        if not failed:
            images[place] = one[0]
    return ReadBatch(names, images, errors, sizes)
