"""Numbers for each class in the lines of a table: marks, probabilities or votes.

    path,cat,dog,bird                 {"path": "a.jpg", "label": {"cat": 8, "dog": 2}}
    a.jpg,0.7,0.2,0.1

What they are is decided by all lines together:

- votes, if most lines have a number above 1: whole numbers, which are divided by their sum;
- otherwise marks, if all numbers are whole: 1 for each class of an image, 0 for the others;
- otherwise probabilities, if they sum to 1 in most lines: then they must in all;
- otherwise probabilities of each class alone, as of several that an image may have.

All but marks are soft labels. A line with a label beside them is certain of it.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax.data.labels import normal_label
from vit_jax.data.sources.manifest.columns import ROUNDING, number_of
from vit_jax.data.sources.manifest.rows import Table
from vit_jax.data.sources.manifest.splits import Row

Rows = dict[str | None, list[Row]]
"""The rows of each split."""

VOTES, MARKS, PROBABILITIES = "votes", "marks", "probabilities"
ALONE = "probabilities of each class alone"
_MOST = "; counts of classes, parts of the data and accuracy take the most probable one"
_NOTES = {
    VOTES: f"labels are numbers of votes for classes, which are divided by their sum{_MOST}",
    PROBABILITIES: f"labels are probabilities of classes{_MOST}",
    ALONE: "labels are probabilities of each class alone, because they do not sum to 1 in most"
    " lines; an image counts for the classes above 1/2",
}


def numbers_of(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the number of each class of a line, by its normal name.

    Raises:
      ValueError: one is no number of at least 0, or a class is there twice.
    """
    numbers: dict[str, float] = {}
    for name, value in values.items():
        number, label = number_of(value), normal_label(name)
        if number is None:
            raise ValueError(
                f"{name!r} is {str(value)[:60]!r}; it must be 0 or 1, a probability from 0 to 1, or"
                " a number of votes"
            )
        if label in numbers:
            raise ValueError(f"the class {label!r} has two numbers; keep one")
        numbers[label] = number
    return numbers


def settle(read: Rows, tables: Mapping[str | None, Table], needs_labels: bool) -> tuple[Rows, str]:
    """Return the rows with the labels that their numbers mean, and what the numbers are.

    Of soft labels the row has the most probable class, or those above 1/2 if each is alone, and as
    `numbers` the probabilities.

    Args:
      read: the rows. tables: those of the splits; mistakes in lines are added to them.
      needs_labels: whether labels are used; otherwise invalid ones are dropped.
    """
    kind = _kind([row.numbers for rows in read.values() for row in rows if row.numbers is not None])
    settled: Rows = {split: [] for split in read}
    for split, rows in read.items():
        for row in rows:
            try:
                settled[split].append(_settled(row, kind))
            except ValueError as error:
                if needs_labels:
                    tables[split].mistakes.add(row.line, str(error))
                else:
                    settled[split].append(dataclasses.replace(row, numbers=None))
    return settled, kind


def note_of(kind: str) -> list[str]:
    """Return a sentence on soft labels; none for marks."""
    return [_NOTES[kind]] if kind in _NOTES else []


def _kind(given: Sequence[Mapping[str, float]]) -> str:
    above = sum(max(numbers.values(), default=0) > 1 for numbers in given)
    if 2 * above > len(given):
        return VOTES
    if all(number.is_integer() for numbers in given for number in numbers.values()):
        return MARKS
    summing = sum(abs(sum(numbers.values()) - 1) <= ROUNDING for numbers in given)
    return PROBABILITIES if 2 * summing > len(given) else ALONE


def _settled(row: Row, kind: str) -> Row:
    """Return a row with its labels; raise ValueError if its numbers are not of this kind."""
    if kind == MARKS:
        return row if row.numbers is None else _marked(row)
    if row.numbers is None:
        if len(row.labels) > 1 and kind != ALONE:
            raise ValueError(
                f"{row.name!r} has several labels, but other lines have {kind}; give it {kind} too"
            )
        numbers = dict.fromkeys(row.labels, 1.0)
        return dataclasses.replace(row, several=kind == ALONE, numbers=numbers)
    shares = _of_votes(row) if kind == VOTES else _of_probabilities(row, kind)
    if kind == ALONE:
        labels = tuple(sorted(name for name, share in shares.items() if share > 0.5))
    else:
        labels = (max(sorted(shares), key=shares.__getitem__),)
    return dataclasses.replace(row, labels=labels, several=kind == ALONE, numbers=shares)


def _marked(row: Row) -> Row:
    for name, number in row.numbers.items():
        if number not in (0, 1):
            raise ValueError(
                f"{name!r} is {number:g}, but most lines have only 0 and 1; use these, or"
                " probabilities or votes in all lines"
            )
    labels = tuple(sorted(name for name, number in row.numbers.items() if number))
    return dataclasses.replace(row, labels=labels, several=len(labels) != 1, numbers=None)


def _of_votes(row: Row) -> dict[str, float]:
    for name, number in row.numbers.items():
        if not number.is_integer():
            raise ValueError(
                f"{name!r} is {number:g}, but most lines have votes; these are whole numbers"
            )
    total = sum(row.numbers.values())
    if not total:
        raise ValueError(f"{row.name!r} has no votes; remove the line")
    return {name: number / total for name, number in row.numbers.items()}


def _of_probabilities(row: Row, kind: str) -> Mapping[str, float]:
    for name, number in row.numbers.items():
        if number > 1:
            raise ValueError(
                f"{name!r} is {number:g}, which is no probability; use numbers from 0 to 1, or in"
                " all lines whole numbers of votes"
            )
    if kind == ALONE:
        return row.numbers
    total = sum(row.numbers.values())
    if abs(total - 1) > ROUNDING:
        raise ValueError(
            f"the probabilities of {row.name!r} sum to {total:g}, but those of most lines to 1;"
            " divide them by their sum"
        )
    return {name: number / total for name, number in row.numbers.items()}
