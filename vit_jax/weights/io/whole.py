"""Files that are written whole or not at all."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import safetensors

from vit_jax.errors import UserError, is_disk_full


@contextlib.contextmanager
def written_whole(path: str | os.PathLike) -> Iterator[Path]:
    """Give the path of a draft that takes the place of a file: a crash leaves the previous one.

    Raises:
      UserError: the file cannot be written.
    """
    path = Path(path).expanduser()
    draft = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())  # or a power failure could leave the new name without content
        os.replace(draft, path)
    except (OSError, safetensors.SafetensorError) as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        remedy = "make room on the disk" if is_disk_full(error) else "choose another folder"
        raise UserError(f"{path} cannot be written ({error}); {remedy}") from error
