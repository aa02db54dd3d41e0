"""Texts of examples: the ids of their captions, one or several for each.

    texts = make_texts([["a cat", "a small cat"], ["a dog"]], TextOptions(), "pets train")
    texts.of(0)        # int32 (2, length), all captions of the first example
    texts.tokenizer    # trained on these captions

Training draws a caption anew in every epoch. Everything else reads the first one.
"""

import dataclasses
import hashlib
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int, Int32, Int64

from vit_jax.data.features import Feature
from vit_jax.errors import UserError

if TYPE_CHECKING:
    from vit_jax.data.text import Tokenizer

LONGEST = 77  # tokens of a text of a tokenizer that is trained on the captions, as CLIP's
_TOGETHER = 8192  # texts that are encoded at a time


@dataclasses.dataclass(frozen=True)
class TextOptions:
    """Tokenizer of captions, and the length of texts.

    tokenizer: of `vit_jax.data.text`; None: one is trained on the captions of the training split.
    length: tokens of a text; 0: those of the tokenizer; of a trained one twice as many as the
        longest training caption has, at most 77, because new words take more tokens.
    needed: whether a dataset without captions is an error where it is opened.
    """

    tokenizer: Any = None
    length: int = 0
    needed: bool = False

    def needs_training_captions(self, split: str) -> bool:
        """Return whether a tokenizer is trained on captions that this split does not have."""
        return self.tokenizer is None and not split.lower().startswith("train")


USUAL = TextOptions()


@dataclasses.dataclass(frozen=True, eq=False)
class Texts:
    """Ids of the captions of examples, in order.

    ids: of all captions. starts: the place of the first caption of each example, and their number.
    tokenizer: what made them. note: a sentence on captions that were cut; "" if none was.
    """

    ids: Int[np.ndarray, "captions length"]
    starts: Int64[np.ndarray, " examples+1"]
    tokenizer: Any
    note: str = ""

    @property
    def feature(self) -> Feature:
        """The feature `text` of examples."""
        return Feature("text", (self.ids.shape[1],))

    @property
    def several(self) -> bool:
        """Return whether an example has more than one caption."""
        return len(self.ids) > len(self.starts) - 1

    def tokens(self) -> Int64[np.ndarray, " captions"]:
        """Return the number of tokens of each caption, start and end included."""
        return (self.ids != self.tokenizer.facts.padding).sum(1)

    def of(self, index: int) -> Int32[np.ndarray, "captions length"]:
        """Return the ids of all captions of an example."""
        return self.ids[self.starts[index] : self.starts[index + 1]].astype(np.int32)

    def first(self, index: int) -> Int32[np.ndarray, " length"]:
        """Return the ids of the first caption of an example."""
        return self.ids[self.starts[index]].astype(np.int32)

    def drawn(self, index: int, rng: np.random.Generator) -> Int32[np.ndarray, " length"]:
        """Return the ids of one of the captions of an example; a single one draws no number."""
        first, end = self.starts[index : index + 2]
        place = first if end == first + 1 else rng.integers(first, end)
        return self.ids[place].astype(np.int32)

    def subset(self, numbers: Int[np.ndarray, " n"]) -> "Texts":
        """Return those of some examples."""
        counts = np.diff(self.starts)[numbers]
        places = [np.arange(self.starts[i], self.starts[i + 1]) for i in numbers]
        ids = self.ids[np.concatenate([np.zeros(0, np.int64), *places])]
        return dataclasses.replace(self, ids=ids, starts=_starts(counts))

    def digest(self) -> bytes:
        """Return a hash that is equal for equal ids."""
        content = hashlib.sha256(str(self.ids.shape).encode())
        content.update(self.starts.tobytes())
        content.update(self.ids.astype(np.int32).tobytes())
        return content.digest()


def make_texts(
    captions: Sequence[Sequence[str]],
    options: TextOptions,
    name: str,
    training: Sequence[Sequence[str]] | None = None,
) -> Texts:
    """Return the ids of the captions of examples, at least one of each.

    Args:
      captions: of every example.
      options: the tokenizer and the length of texts.
      name: of the examples, for messages.
      training: captions to train a tokenizer on, if the options have none; None: the same.

    Raises:
      UserError: a caption has no tokens.
    """
    if without := [index for index, some in enumerate(captions) if not some]:
        raise UserError(
            f"{len(without):,} of the {len(captions):,} images of {name} have no caption; the first"
            f" is example {without[0]}; remove them"
        )
    flat = list(itertools.chain(*captions))
    tokenizer, trained_here = options.tokenizer, False
    if tokenizer is None:
        from vit_jax.data.text import train_tokenizer  # its library is slow to import

        others = None if training is None else list(itertools.chain(*training))
        tokenizer = train_tokenizer(others or flat, length=options.length or LONGEST)
        if others and not options.length:
            tokenizer = tokenizer.with_length(_room(_encoded(tokenizer, others, name), tokenizer))
        trained_here = not others and not options.length
    tokenizer = tokenizer.with_length(options.length or tokenizer.length)  # it counts from 0
    ids = _encoded(tokenizer, flat, name)
    note = f"captions of {name}: {cut}" if (cut := tokenizer.cut_report()) else ""
    if trained_here:
        tokenizer = tokenizer.with_length(_room(ids, tokenizer))
        ids = ids[:, : tokenizer.length].copy()
    return Texts(ids, _starts(list(map(len, captions))), tokenizer, note)


def _starts(counts: Sequence[int]) -> Int64[np.ndarray, " examples+1"]:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)


def _encoded(
    tokenizer: "Tokenizer", captions: Sequence[str], name: str
) -> Int[np.ndarray, "captions length"]:
    """Return the ids in the smallest type that has room for them."""
    dtype = np.uint16 if tokenizer.vocabulary <= 2**16 else np.int32
    ids = np.empty((len(captions), tokenizer.length), dtype)
    for start in range(0, len(captions), _TOGETHER):
        block = captions[start : start + _TOGETHER]
        try:
            ids[start : start + len(block)] = tokenizer.encode(block)
        except UserError as error:
            raise UserError(f"captions of {name} from number {start:,} on: {error}") from error
    return ids


def _room(ids: Int[np.ndarray, "captions length"], tokenizer: "Tokenizer") -> int:
    """Return twice the number of tokens of the longest text, or the tokenizer's if it is less."""
    longest = int((ids != tokenizer.facts.padding).sum(1).max(initial=2))
    return min(2 * longest, tokenizer.length)
