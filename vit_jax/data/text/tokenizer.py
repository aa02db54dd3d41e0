"""Tokenizer: texts to ids of tokens, of one length, with what a text tower needs around them.

    tokenizer = clip_tokenizer()
    ids = tokenizer.encode(["a photo of a cat", "a photo of a dog"])  # int32 (2, 77)

- The tokens come from the library `tokenizers`. Start, end and padding are set here: a text is
  `[start] tokens end padding...`. A text that is too long loses its last tokens, never the end.
- A text is only text: what is written like a special token, `<|endoftext|>`, becomes its letters.
- A folder of a saved tokenizer has `tokenizer.json`, which the library reads too, and `text.json`
  with the facts of ours.
"""

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from vit_jax.data.text.cleaning import CLEANINGS, clean
from vit_jax.errors import UserError, shown, writing
from vit_jax.text import counted, to_json

# Threads of the library would not survive a fork of a process that loads data. Set before import.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import tokenizers

BACKEND_FILE, FACTS_FILE = "tokenizer.json", "text.json"
MOST_TOKENS = 2**16  # of a text
# Rows of a tower's table beyond the vocabulary, which some add for their devices, and their share.
MOST_SPARE_ROWS = 1_023
MOST_SPARE_SHARE = 1 / 8


@dataclasses.dataclass(frozen=True)
class TextFacts:
    """Length, special tokens and cleaning of the texts that a model expects.

    length: tokens of every text, with start, end and padding.
    start: id in front of a text; None: there is none. end: id behind it. padding: id after that.
    cleaning: name of a cleaning, see `cleaning`.
    """

    length: int
    start: int | None
    end: int
    padding: int
    cleaning: str

    def check(self, where: str, vocabulary: int) -> None:
        """Raise UserError for facts that no tokenizer of that vocabulary has."""
        if self.cleaning not in CLEANINGS:
            raise UserError(
                f"{where}: unknown cleaning {shown(self.cleaning)}; use one of "
                f"{', '.join(map(repr, CLEANINGS))}"
            )
        for name in ("start", "end", "padding"):
            value = getattr(self, name)
            if value is None and name == "start":
                continue
            if type(value) is not int or not 0 <= value < vocabulary:
                raise UserError(
                    f"{where}: {name}={shown(value)} is no id of a vocabulary of {vocabulary:,}"
                )
        least = 2 if self.start is None else 3
        if type(self.length) is not int or not least <= self.length <= MOST_TOKENS:
            raise UserError(
                f"{where}: length={shown(self.length)} must be a whole number from {least} to "
                f"{MOST_TOKENS:,}, with start and end"
            )


class Tokenizer:
    """Texts to ids; made by `clip_tokenizer`, `siglip_tokenizer`, `train_tokenizer` and `load`.

    Attributes:
        facts: length, special ids and cleaning.
        vocabulary: number of ids.
        num_encoded, num_cut: texts that were encoded so far, and those of them that were cut.
    """

    def __init__(self, backend: tokenizers.Tokenizer, facts: TextFacts, where: str = "tokenizer"):
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True
        self.facts = facts
        self.vocabulary = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.num_encoded = self.num_cut = 0
        self._backend = backend
        facts.check(where, self.vocabulary)

    def __reduce__(self):
        return _unpickled, (self._backend.to_str(), self.facts)

    @property
    def length(self) -> int:
        """Tokens of every text."""
        return self.facts.length

    def with_length(self, length: int) -> "Tokenizer":
        """Return a tokenizer for texts of another length."""
        facts = dataclasses.replace(self.facts, length=length)
        return Tokenizer(tokenizers.Tokenizer.from_str(self._backend.to_str()), facts)

    def encode(
        self, texts: str | Sequence[str], *, allow_empty: bool = False
    ) -> Int[np.ndarray, "texts length"]:
        """Return int32 ids `(texts, length)`; one text alone is one row.

        Args:
            allow_empty: whether a text may have no token, which leaves start and end.

        Raises:
            UserError: something is no text, or empty; the sentence counts and names the first.
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        _check_texts(texts)
        cleaned = [clean(self.facts.cleaning, text) for text in texts]
        found = [one.ids for one in self._backend.encode_batch(cleaned, add_special_tokens=False)]
        if not allow_empty:
            _check_empty(found)
        front = [] if self.facts.start is None else [self.facts.start]
        room = self.length - len(front) - 1
        rows = np.full((len(texts), self.length), self.facts.padding, np.int32)
        for row, ids in zip(rows, found, strict=True):
            whole = [*front, *ids[:room], self.facts.end]
            row[: len(whole)] = whole
        self.num_encoded += len(texts)
        self.num_cut += sum(len(ids) > room for ids in found)
        return rows

    def cut_report(self) -> str:
        """Return a sentence about the texts that were cut so far; "" if none was."""
        if not self.num_cut:
            return ""
        return (
            f"{self.num_cut:,} of {counted(self.num_encoded, 'text')} "
            f"{'was' if self.num_cut == 1 else 'were'} cut to {self.length} tokens"
        )

    def difference(self, other: "Tokenizer") -> str:
        """Return in words what another tokenizer has differently; "" if both give equal ids."""
        if self.vocabulary != other.vocabulary:
            return f"a vocabulary of {self.vocabulary:,}, and {other.vocabulary:,}"
        for name, mine in dataclasses.asdict(self.facts).items():
            if mine != (theirs := getattr(other.facts, name)):
                return f"{name} = {mine!r}, and {theirs!r}"
        same = self._backend.to_str() == other._backend.to_str()
        return "" if same else "equally many tokens, but other ones"

    def check_tower(self, tower: Any) -> None:
        """Raise UserError if a text tower was not made for this tokenizer.

        Args:
            tower: has the fields `vocabulary`, `length` and `end_token` of a `TextTower`.
        """
        most = min(MOST_SPARE_ROWS, int(self.vocabulary * MOST_SPARE_SHARE))
        if not 0 <= tower.vocabulary - self.vocabulary <= most:
            raise UserError(
                f"the tokenizer has a vocabulary of {self.vocabulary:,}, but the text tower of "
                f"{tower.vocabulary:,}: it does not belong to these weights"
            )
        if self.length > tower.length:
            raise UserError(
                f"the tokenizer makes texts of {self.length} tokens, but the text tower takes "
                f"{tower.length}; use tokenizer.with_length({tower.length})"
            )
        if tower.end_token is not None and tower.end_token != self.facts.end:
            raise UserError(
                f"the tokenizer ends a text with the id {self.facts.end}, but the text tower looks "
                f"for {tower.end_token}: it does not belong to these weights"
            )

    def save(self, folder: str | os.PathLike) -> Path:
        """Write `tokenizer.json` and `text.json` into a folder, and return it."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        contents = {
            BACKEND_FILE: self._backend.to_str(pretty=False),
            FACTS_FILE: to_json(dataclasses.asdict(self.facts), indent=2),
        }
        for name, content in contents.items():
            with writing(folder / name):
                (folder / name).write_text(content + "\n", "utf-8")
        return folder

    @classmethod
    def load(cls, folder: str | os.PathLike) -> "Tokenizer":
        """Read what `save` wrote; `load_tokenizer` also reads the files of others.

        Raises:
            UserError: a file is missing, or is not what its name says.
        """
        folder = Path(folder)
        backend, facts = read_backend(folder / BACKEND_FILE), read_json(folder / FACTS_FILE)
        names = {field.name for field in dataclasses.fields(TextFacts)}
        if set(facts) != names:
            raise UserError(
                f"{folder / FACTS_FILE} must have the entries {', '.join(sorted(names))}; it has "
                f"{', '.join(sorted(facts)) or 'none'}"
            )
        return cls(backend, TextFacts(**facts), str(folder))


def _unpickled(backend: str, facts: TextFacts) -> Tokenizer:
    """Return the tokenizer of another process, which the library alone would not copy as it is."""
    return Tokenizer(tokenizers.Tokenizer.from_str(backend), facts)


def read_backend(path: Path) -> tokenizers.Tokenizer:
    """Read a `tokenizer.json`. Raises UserError if it is none."""
    content = read_json(path)
    if not isinstance(content.get("model"), dict):
        raise UserError(f"{path} is no file of the library tokenizers: it has no model")
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(content))
    except Exception as error:  # the library raises the class itself
        raise UserError(f"{path} is no tokenizer that the library tokenizers reads: {error}") from (
            error
        )


def read_json(path: Path) -> dict[str, Any]:
    """Read a record in JSON. Raises UserError if there is none."""
    try:
        content = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is no record in JSON, it holds a {type(content).__name__}")
    return content


def read_bytes(path: Path) -> bytes:
    """Read a file. Raises UserError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def _check_texts(texts: list[Any]) -> None:
    wrong = [i for i, text in enumerate(texts) if not isinstance(text, str)]
    if wrong:
        raise UserError(
            f"{len(wrong):,} of {counted(len(texts), 'text')} {_verb(wrong)} no text; the first is "
            f"number {wrong[0]}, {shown(texts[wrong[0]], 60)}"
        )


def _check_empty(found: list[list[int]]) -> None:
    empty = [i for i, ids in enumerate(found) if not ids]
    if empty:
        raise UserError(
            f"{len(empty):,} of {counted(len(found), 'text')} {_verb(empty)} empty; the first is "
            f"number {empty[0]}, counted from 0"
        )


def _verb(items: list[int]) -> str:
    return "is" if len(items) == 1 else "are"
