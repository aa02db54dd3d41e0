"""Tokenizers by the names under which their weights are published."""

import os

from vit_jax.data.text.load import load_tokenizer
from vit_jax.data.text.tokenizer import BACKEND_FILE, Tokenizer
from vit_jax.weights.remote.hub import fetch


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
