"""Findings on single images of a source, which the report on a dataset sums up."""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from vit_jax.data.images.clips import still
from vit_jax.data.images.preprocess import to_pillow
from vit_jax.data.images.transparency import is_invisible, read_alpha, with_alpha
from vit_jax.data.inspect.targets import TargetLook, is_dense, look_at
from vit_jax.data.sources.source import Source
from vit_jax.errors import DecodeError, UserError

THREADS = 8  # decoders run outside of the GIL; each holds one decoded image


BLOCK = 256  # images that wait for those threads at a time


@dataclasses.dataclass(frozen=True)
class Look:
    """Findings on one image; only the first two fields if it cannot be read."""

    index: int
    bad: tuple[str, str] | None = None
    size: tuple[int, int] = (0, 0)
    grey: bool = False
    invisible: bool = False
    format: str | None = None
    pixels: bytes = b""  # hash of the pixels
    mean: tuple[float, ...] = ()
    mean_of_squares: tuple[float, ...] = ()
    targets: TargetLook | None = None


def examine_all(
    source: Source, limit: int | None, progress: Callable[[int, int], None]
) -> list[Look]:
    """Return the findings on every image of a source, read in threads, in the order of indices.

    limit: the most images; of a larger source a sample, always the same one. None: all.
    progress: called with the numbers of images done and in all.
    """
    indices = range(len(source))
    if limit is not None and len(source) > limit:
        chosen = np.random.default_rng(0).choice(len(source), limit, replace=False)
        indices = np.sort(chosen).tolist()
    looks: list[Look] = []
    with ThreadPoolExecutor(THREADS) as threads:
        for start in range(0, len(indices), BLOCK):
            block = indices[start : start + BLOCK]
            for look in threads.map(functools.partial(examine, source), block):
                looks.append(look)
                progress(len(looks), len(indices))
    return looks


def examine(source: Source, index: int) -> Look:
    """Return the findings on one image; one that cannot be read has its name and cause in `bad`."""
    try:
        example = source[index]
        image = still(example["image"])
    except DecodeError as error:
        return Look(index, bad=(error.name, error.cause))
    except UserError as error:  # for example, an example with a secret label
        return Look(index, bad=(source.where(index), str(error)))
    channels = image.shape[2]
    mean, mean_of_squares = _moments(image)
    return Look(
        index,
        size=image.shape[:2],
        grey=channels == 1 or bool(channels == 3 and np.all(image[:, :, :1] == image[:, :, 1:])),
        invisible=image.min() == 255 and _is_invisible_file(source.where(index)),
        format=_file_format(source.where(index)),
        pixels=hashlib.blake2b(
            np.ascontiguousarray(image), digest_size=16, person=b"%dx%d" % image.shape[:2]
        ).digest(),
        mean=mean,
        mean_of_squares=mean_of_squares,
        targets=look_at(example, source.features) if is_dense(source.features) else None,
    )


def _moments(image: UInt8[np.ndarray, "h w c"]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and mean of squares of the pixels on the scale 0 to 1, for each channel."""
    channels = image.shape[2]
    # A histogram holds all that is needed, and Pillow counts it faster than numpy squares.
    if channels in (1, 3):
        counts = to_pillow(image).histogram()
    else:
        counts = [to_pillow(image[:, :, [channel]]).histogram() for channel in range(channels)]
    shares = np.reshape(counts, (channels, 256)) / (image.shape[0] * image.shape[1])
    levels = np.arange(256) / 255
    return tuple((shares @ levels).tolist()), tuple((shares @ levels**2).tolist())


def _file_format(path: str) -> str | None:
    """Return the format of an image file by its first bytes, such as JPEG; None without a file."""
    if not os.path.isfile(path):
        return None
    try:
        with Image.open(path) as file:
            return file.format
    except Exception:  # decoding has succeeded before; the format alone is not worth an error
        return None


def _is_invisible_file(path: str) -> bool:
    """Return whether an image file is transparent in every pixel."""
    if not os.path.isfile(path):
        return False
    try:
        with Image.open(path) as image:
            alpha = read_alpha(image)
            image.load()
            return is_invisible(with_alpha(image, alpha))
    except Exception:  # as above
        return False
