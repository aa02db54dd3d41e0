"""Tokenizers that are trained on captions, for data of one's own.

Ids: padding is 0; of words, 1 is an unknown one; start and end are the last two, so that a text
ends at its largest id, as CLIP's do.
"""

from collections.abc import Iterable
from typing import Any

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from vit_jax.data.text.cleaning import clean
from vit_jax.data.text.tokenizer import TextFacts, Tokenizer
from vit_jax.errors import UserError, shown

PADDING, UNKNOWN, START, END = "<padding>", "<unknown>", "<start>", "<end>"
UNITS = ("bytes", "words")
LARGEST_VOCABULARY = 2**20


def train_tokenizer(
    captions: Iterable[str], *, vocabulary: int = 4096, length: int = 77, units: str = "bytes"
) -> Tokenizer:
    """Train a tokenizer; save it with the run, because its ids belong to the weights.

    Args:
        captions: texts of the training data; cleaned as "simple".
        vocabulary: largest number of ids, the special ones included; few captions give fewer.
        length: tokens of a text.
        units: "bytes", byte-pair encoding, which can write any text; or "words", whole words,
            the most frequent ones.

    Raises:
        UserError: there are no captions, or a value is none.
    """
    if units not in UNITS:
        raise UserError(f"unknown units={shown(units)} of a tokenizer; use 'bytes' or 'words'")
    least = 256 + 3 if units == "bytes" else 5
    if type(vocabulary) is not int or not least <= vocabulary <= LARGEST_VOCABULARY:
        raise UserError(
            f"a tokenizer of {units} has a vocabulary from {least} to {LARGEST_VOCABULARY:,}, got "
            f"{shown(vocabulary)}"
        )
    cleaned = filter(None, (clean("simple", caption) for caption in captions))
    backend, trainer = (_bytes if units == "bytes" else _words)(vocabulary - 2)
    backend.train_from_iterator(_some(cleaned), trainer)
    backend.add_special_tokens([START, END])
    start, end, padding = (backend.token_to_id(name) for name in (START, END, PADDING))
    return Tokenizer(backend, TextFacts(length, start, end, padding, "simple"))


def _bytes(size: int) -> tuple[tokenizers.Tokenizer, Any]:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[PADDING],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    return backend, trainer


def _words(size: int) -> tuple[tokenizers.Tokenizer, Any]:
    backend = tokenizers.Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(
        vocab_size=size, special_tokens=[PADDING, UNKNOWN], show_progress=False
    )
    return backend, trainer


def _some(captions: Iterable[str]) -> Iterable[str]:
    """Yield the captions; raises UserError if there is none."""
    number = 0
    for number, caption in enumerate(captions, 1):  # noqa: B007
        yield caption
    if not number:
        raise UserError("a tokenizer is trained on captions, and there is none that is not empty")
