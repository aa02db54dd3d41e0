"""Tokenizers by the names under which their weights are published."""

import dataclasses
import os
from pathlib import Path

from vit_jax.data.text.load import has_tokenizer, load_tokenizer
from vit_jax.data.text.tokenizer import BACKEND_FILE, Tokenizer
from vit_jax.errors import UserError
from vit_jax.runs import RunDir
from vit_jax.runs.tokenizer import read_tokenizer
from vit_jax.text import tell
from vit_jax.weights.remote.hub import HubName, fetch


def fetch_tokenizer(name: str | os.PathLike, length: int | None = None) -> Tokenizer:
    """Return the tokenizer of a path or an address; download it if necessary.

    Args:
        name: a path, as for `load_tokenizer`; `hf://owner/name`, whose `tokenizer.json` is taken,
            or with the name of another file behind it; or `https://...`.
        length: tokens of a text; None: those of its origin.

    Raises:
        UserError: there is no such file, or none that is a tokenizer.
    """
    text = os.fspath(name)
    if text.startswith("hf://") and text.count("/") == 3:  # no file is named
        text = f"{text}/{BACKEND_FILE}"
    return load_tokenizer(fetch(text), length)


def find_tokenizer(source: str | os.PathLike, length: int | None = None) -> Tokenizer | None:
    """Return the tokenizer that belongs to weights: in a run, beside a file, or of a repository.

    Args:
        source: where the weights are: a file, the folder of one, a run, or `hf://owner/name`.
        length: tokens of a text; None: those of its origin.

    Returns None if there is none. That a download has failed is said on standard error.

    Raises:
        UserError: the file that is there is no tokenizer.
    """
    text = os.fspath(source)
    if text.startswith("hf://"):
        return _of_repository(HubName.parse(text), length)
    if "://" in text:
        return None
    path = Path(text).expanduser()
    if (run := RunDir(path)).is_run():
        return read_tokenizer(run)
    folder = path if path.is_dir() else path.parent
    return load_tokenizer(folder, length) if has_tokenizer(folder) else None


def _of_repository(name: HubName, length: int | None) -> Tokenizer | None:
    folder = name.file.rpartition("/")[0]
    beside = f"{folder}/{BACKEND_FILE}" if folder else BACKEND_FILE
    try:
        path = fetch(str(dataclasses.replace(name, file=beside)))
    except UserError as error:
        tell(f"{name}: without its tokenizer, because {error}", error=True)
        return None
    return load_tokenizer(path, length)
