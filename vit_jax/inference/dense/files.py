"""Files of the results of many images, in one folder."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from vit_jax.data.paths import as_text
from vit_jax.errors import DecodeError, UserError
from vit_jax.inference.predictor import Predictor
from vit_jax.inference.streaming import named_images


def write_files(
    predictor: Predictor, images: Iterable[str], folder: str | os.PathLike
) -> Iterator[tuple[str, list[Path] | UserError]]:
    """Write the files of each image, and yield its name with their paths, or with its error.

    Files are called as the image; of several with one name those after the first get a number.

    Args:
        predictor: one with `files`.
        images: files and folders.
        folder: made if missing. Where it is inside a folder of images, its files are none of them.

    Raises:
        UserError: the folder cannot be made, or images are given that are inside of it.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output={folder} is no folder and cannot be made: {error}") from error
    taken: set[str] = set()
    for name, image in named_images(_outside(images, folder)):
        if isinstance(image, DecodeError):
            yield as_text(name), image
            continue
        if _is_inside(name, folder):
            continue
        try:
            pixels = predictor.preprocessing.decode(image, name=as_text(name))
        except DecodeError as error:
            yield as_text(name), error
            continue
        [result] = predictor(pixels)
        stem = own = Path(as_text(name)).stem
        number = 1
        while stem in taken:
            stem = f"{own}-{(number := number + 1)}"
        taken.add(stem)
        yield as_text(name), predictor.write(folder, stem, result, pixels)


def _outside(images: Iterable[str | DecodeError], folder: Path) -> Iterator[str | DecodeError]:
    """Yield images and folders of images; raise UserError for one in the folder of the results."""
    for name in images:
        if not isinstance(name, DecodeError) and _is_inside(name, folder):
            raise UserError(
                f"--output={folder} is, or contains, {as_text(name)}, so that results would lie"
                " among the images; use another folder"
            )
        yield name


def _is_inside(name: str, folder: Path) -> bool:
    return Path(name).resolve().is_relative_to(folder.resolve())
