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
        folder: made if missing.

    Raises:
        UserError: the folder cannot be made.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output={folder} is no folder and cannot be made: {error}") from error
    taken: dict[str, int] = {}
    for name, image in named_images(images):
        if isinstance(image, DecodeError):
            yield as_text(name), image
            continue
        if Path(name).resolve().is_relative_to(folder.resolve()):  # inside a folder of images
            continue
        try:
            pixels = predictor.preprocessing.decode(image, name=as_text(name))
        except DecodeError as error:
            yield as_text(name), error
            continue
        [result] = predictor(pixels)
        stem = Path(as_text(name)).stem
        number = taken[stem] = taken.get(stem, 0) + 1
        stem = stem if number == 1 else f"{stem}-{number}"
        yield as_text(name), predictor.write(folder, stem, result, pixels)
