"""Index of images: their vectors, kept in a file, and the images that are nearest to a text.

    index = build_index(towers, ["photos/"], "photos.npz")
    index.nearest(towers.encode_text("a red shoe"), top=12)

- The file holds names, sizes, times and vectors. At the next search only images that are new or
  changed are read again, and those that are gone are left out.
- It belongs to one model, known by its vector of a fixed image; that of another is made anew.
"""

import os
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int64

from vit_jax.errors import DecodeError, UserError, writing
from vit_jax.inference.find_images import find_images
from vit_jax.inference.two_towers import TwoTowers
from vit_jax.text import counted, tell

_FORMAT = 1
_PARTS = ("format", "model", "names", "stamps", "vectors")
_TOLERANCE = 1e-3  # of the vector of the fixed image, on another device


class Match(NamedTuple):
    """An image and its cosine with what was asked for."""

    name: str
    cosine: float


@dataclass(frozen=True)
class ImageIndex:
    """Vectors of images.

    names: their paths. stamps: size in bytes and time of change in nanoseconds of each file.
    vectors: of length 1. model: the vector of the fixed image.
    """

    names: list[str]
    stamps: Int64[np.ndarray, "images 2"]
    vectors: Float32[np.ndarray, "images width"]
    model: Float32[np.ndarray, " width"]

    def nearest(self, vector: Float32[np.ndarray, " width"], top: int) -> list[Match]:
        """Return the images whose vectors have the largest cosines with a vector, largest first."""
        cosines = self.vectors @ np.asarray(vector, np.float32).reshape(-1)
        order = np.argsort(-cosines, kind="stable")[:top]
        return [Match(self.names[i], float(cosines[i])) for i in order]

    def save(self, path: str | os.PathLike) -> None:
        """Write the index to a file. Raises UserError if it cannot be written."""
        path = Path(path)
        names = np.array([os.fsencode(name) for name in self.names], dtype=np.bytes_)
        arrays = (np.int64(_FORMAT), self.model, names, self.stamps, self.vectors)
        part = path.with_name(f"{path.name}.part")
        with writing(path):
            with open(part, "wb") as file:
                np.savez(file, **dict(zip(_PARTS, arrays, strict=True)))
            part.replace(path)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "ImageIndex":
        """Read an index. Raises UserError if the file is none, or damaged."""
        try:
            with np.load(path, allow_pickle=False) as file:
                parts = {name: file[name] for name in _PARTS}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            why = f", {error.strerror}" if isinstance(error, OSError) and error.strerror else ""
            raise UserError(
                f"{path} is no index of images, or damaged{why}; remove it, or name another with "
                "--cache="
            ) from error
        count = len(parts["names"])
        fits = parts["vectors"].shape == (count, *parts["model"].shape)
        if parts["format"] != _FORMAT or not fits or parts["stamps"].shape != (count, 2):
            raise UserError(f"{path} is an index of images of another version; remove it")
        names = [os.fsdecode(name) for name in parts["names"].tolist()]
        return cls(names, parts["stamps"], parts["vectors"], parts["model"])


def build_index(
    towers: TwoTowers,
    images: Iterable[str],
    cache: str | os.PathLike | None = None,
    *,
    batch_size: int = 64,
    show: Callable[[int, int], None] = lambda done, total: None,
) -> ImageIndex:
    """Return the index of images, from a file as far as it has them, and write that file.

    Args:
        images: files and folders.
        cache: the file; None: there is none.
        show: is called with the number of images that are read so far and that of all to read.

    Raises:
        UserError: there is no image, or the file is no index. Images that cannot be read are named
            and counted.
    """
    found, problems = [], []
    for image in find_images(images):
        (problems if isinstance(image, DecodeError) else found).append(image)
    found = list(dict.fromkeys(found))
    stamps = {name: stamp for name in found if (stamp := _stamp(name)) is not None}
    problems += [f"{name}: there is no such file" for name in found if name not in stamps]
    model = _of_fixed_image(towers)
    known = _known(cache, model)
    old = {
        name: known[name][1]
        for name in stamps
        if name in known and tuple(known[name][0]) == stamps[name]
    }
    new, done = [name for name in stamps if name not in old], 0
    for batch, outputs in towers.batches(new, batch_size) if new else ():
        for name, error, vector in zip(batch.names, batch.errors, outputs["vectors"], strict=True):
            if error is None and not np.isfinite(vector).all():
                error = f"{name}: its vector is not finite"
            if error is None:
                old[name] = vector
            else:
                problems.append(error)
        done += len(batch.names)
        show(done, len(new))
    for problem in problems:
        tell(f"error: {problem}", error=True)
    names = [name for name in stamps if name in old]
    if not names:
        raise UserError(
            f"there is no image to search: {counted(len(problems), 'file')} of "
            f"{len(found):,} could not be read"
        )
    index = ImageIndex(
        names,
        np.array([stamps[name] for name in names], np.int64).reshape(-1, 2),
        np.stack([old[name] for name in names]).astype(np.float32),
        model,
    )
    if cache is not None:
        index.save(cache)
    return index


def _stamp(name: str) -> tuple[int, int] | None:
    try:
        about = os.stat(name)
    except OSError:
        return None
    return about.st_size, about.st_mtime_ns


def _known(
    cache: str | os.PathLike | None, model: Float32[np.ndarray, " width"]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return stamps and vectors by name that a file has of this model."""
    if cache is None or not os.path.exists(cache):
        return {}
    index = ImageIndex.load(cache)
    if index.model.shape != model.shape or np.abs(index.model - model).max() > _TOLERANCE:
        tell(f"{cache} is an index of another model, and is made anew", error=True)
        return {}
    return dict(
        zip(index.names, zip(index.stamps.tolist(), index.vectors, strict=True), strict=True)
    )


def _of_fixed_image(towers: TwoTowers) -> Float32[np.ndarray, " width"]:
    """Return the vector of an image of every shade, by which a model is known."""
    shape = (1, *towers.inputs["images"].shape[1:])
    pixels = (np.arange(np.prod(shape)) * 37 % 256).astype(np.uint8).reshape(shape)
    return np.asarray(towers.run(pixels)["vectors"])[0]
