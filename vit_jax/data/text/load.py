"""Reading a tokenizer of any origin, which its content tells."""

import os
from pathlib import Path

from vit_jax.data.text import clip, sentencepiece
from vit_jax.data.text.tokenizer import BACKEND_FILE, FACTS_FILE, Tokenizer, read_backend
from vit_jax.errors import UserError

# Files of a folder in the order of preference.
_FILES = (BACKEND_FILE, "spiece.model", "tokenizer.model", clip.MERGES_FILE, "merges.txt")


def load_tokenizer(path: str | os.PathLike, length: int | None = None) -> Tokenizer:
    """Return the tokenizer of a path: one that was saved here, or of CLIP, SigLIP or SigLIP 2.

    Args:
        path: a folder or a file: `tokenizer.json`, a `.model` of SentencePiece, or CLIP's merges;
            downloaded ones are those of `vit_jax.weights.remote.tokenizer`.
        length: tokens of a text; None: those of its origin, 77 of CLIP and 64 of SigLIP.

    Raises:
        UserError: there is no such file, or none that is a tokenizer.
    """
    path = Path(path).expanduser()
    if (path / FACTS_FILE).is_file():
        tokenizer = Tokenizer.load(path)
        return tokenizer if length is None else tokenizer.with_length(length)
    if path.is_dir():
        path = _choose(path)
    if path.suffix == ".json":
        backend = read_backend(path)
        is_clip = backend.token_to_id(clip.START) is not None
        origin = clip if is_clip else sentencepiece
        return origin.from_backend(backend, length or origin.LENGTH, str(path))
    if path.suffix == ".model":
        return sentencepiece.siglip_tokenizer(path, length or sentencepiece.LENGTH)
    return clip.clip_tokenizer(path, length or clip.LENGTH)


def has_tokenizer(folder: str | os.PathLike) -> bool:
    """Return whether a folder has a file for `load_tokenizer`."""
    return any((Path(folder) / name).is_file() for name in _FILES)


def _choose(folder: Path) -> Path:
    for name in _FILES:
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"{folder} has no tokenizer; it needs one of {', '.join(_FILES)}")
