"""SigLIP's tokenizers, read from files of SentencePiece without that library.

A `.model` file is a protocol buffer, of which three messages are read here: pieces with their
scores, the trainer's settings, and the normaliser's table. SigLIP's is a unigram model of 32,000
pieces, `c4_en` (Kudo 2018, "Subword Regularization"). SigLIP 2's, of 256,000, is read from the
`tokenizer.json` of its repositories.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from vit_jax.data.text.tokenizer import TextFacts, Tokenizer, read_backend, read_bytes
from vit_jax.errors import UserError

LENGTH = 64
SPACE = "\u2581"  # stands for a space in pieces
_UNIGRAM = 1
# Numbers of fields in sentencepiece_model.proto.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE, _SCORE = 1, 2
_MODEL_TYPE, _BYTE_FALLBACK, _UNKNOWN_ID, _END_ID = 3, 35, 40, 42
_CHARACTER_TABLE = 2


def siglip_tokenizer(path: str | os.PathLike, length: int = LENGTH) -> Tokenizer:
    """Return the tokenizer of a SigLIP or SigLIP 2.

    Args:
        path: a `.model` file of SentencePiece, or a `tokenizer.json`.
        length: tokens of a text.

    Raises:
        UserError: the file is missing or none of these.
    """
    path = Path(path)
    if path.suffix == ".json":
        return from_backend(read_backend(path), length, str(path))
    pieces = read_pieces(path)
    return Tokenizer(
        backend_of_pieces(pieces),
        TextFacts(length, None, pieces.end_id, pieces.end_id, "canonical"),
        str(path),
    )


def from_backend(backend: tokenizers.Tokenizer, length: int, where: str) -> Tokenizer:
    """Return the tokenizer of a `tokenizer.json` of SigLIP, or SigLIP 2, whose tokens tell it.

    SigLIP ends and fills texts with `</s>`; SigLIP 2 ends them with `<eos>`, fills with `<pad>`.

    Raises UserError if it has neither tokens.
    """
    if (end := backend.token_to_id("</s>")) is not None:
        return Tokenizer(backend, TextFacts(length, None, end, end, "canonical"), where)
    end, padding = backend.token_to_id("<eos>"), backend.token_to_id("<pad>")
    if end is None or padding is None:
        raise UserError(
            f"{where} is no tokenizer of SigLIP: it has neither a token </s> nor <eos> and <pad>"
        )
    return Tokenizer(backend, TextFacts(length, None, end, padding, "lower"), where)


class Pieces(NamedTuple):
    """Content of a file: pieces with scores, ids, and the table of the normaliser.

    table: replacements of characters in the form of the library, b"" if there are none.
    """

    pieces: list[tuple[str, float]]
    unknown_id: int
    end_id: int
    byte_fallback: bool
    table: bytes


def backend_of_pieces(pieces: Pieces) -> tokenizers.Tokenizer:
    """Return the tokenizer of the library `tokenizers` with the same pieces and ids."""
    model = models.Unigram(pieces.pieces, pieces.unknown_id, pieces.byte_fallback)
    backend = tokenizers.Tokenizer(model)
    # The library looks up a letter with several accents as a whole, SentencePiece part by part.
    steps = [normalizers.NFC(), normalizers.Precompiled(pieces.table)] if pieces.table else []
    steps += [normalizers.Replace(tokenizers.Regex(" {2,}"), " "), normalizers.Strip()]
    backend.normalizer = normalizers.Sequence(steps)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="always")
    return backend


def read_pieces(path: Path) -> Pieces:
    """Read a file of SentencePiece. Raises UserError if it is none, or of another algorithm."""
    content = read_bytes(path)
    settings = {_MODEL_TYPE: _UNIGRAM, _BYTE_FALLBACK: 0, _UNKNOWN_ID: 0, _END_ID: 2}
    pieces, table = [], b""
    try:
        for number, value in _fields(content):
            if number == _PIECES:
                piece = dict(_fields(value))
                (score,) = struct.unpack("<f", piece.get(_SCORE, bytes(4)))
                pieces.append((piece[_PIECE].decode("utf-8"), score))
            elif number == _TRAINER:
                settings |= {k: v for k, v in _fields(value) if k in settings}
            elif number == _NORMALIZER:
                table = dict(_fields(value)).get(_CHARACTER_TABLE, b"")
    except (ValueError, LookupError, AttributeError, TypeError, struct.error) as error:
        raise UserError(f"{path} is no file of SentencePiece") from error
    if not pieces:
        raise UserError(f"{path} is no file of SentencePiece: it has no pieces")
    if settings[_MODEL_TYPE] != _UNIGRAM:
        raise UserError(
            f"{path} is a file of SentencePiece, but no unigram model; give the tokenizer.json of "
            "the model's repository on the hub"
        )
    end, unknown = settings[_END_ID], settings[_UNKNOWN_ID]
    if not (isinstance(end, int) and isinstance(unknown, int)):
        raise UserError(f"{path} is no file of SentencePiece: its special ids are no numbers")
    if not (end < len(pieces) and unknown < len(pieces)):
        raise UserError(f"{path} has no piece that ends a text, or none for unknown characters")
    return Pieces(pieces, unknown, end, bool(settings[_BYTE_FALLBACK]), table)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a protocol buffer (its guide, "Encoding").

    Raises ValueError for what is none.
    """
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        kind = tag & 7
        if kind == 0:
            value, place = _varint(message, place)
        elif kind in (1, 2, 5):
            size = {1: 8, 5: 4}.get(kind)
            if size is None:
                size, place = _varint(message, place)
            value, place = message[place : place + size], place + size
            if place > len(message):
                raise ValueError("a field is longer than its message")
        else:
            raise ValueError("no such type of field")
        yield tag >> 3, value


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, and the place behind it."""
    value = shift = 0
    while shift < 70 and place < len(message):
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if not byte & 0x80:
            return value, place
    raise ValueError("a number does not end")
