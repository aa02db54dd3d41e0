"""Checks of a file once its tensors are arranged: tensors missing, left over, or NaN.

Tensors are called as they are in the file, with all that stands in front, and not by our paths.
"""

import re
from collections.abc import Iterator, Sequence

import numpy as np

from vit_jax.errors import UserError
from vit_jax.weights import prefixes
from vit_jax.weights.formats import CheckpointFormat
from vit_jax.weights.mapping import Reading, Row, Tensors, summarize


def check_read(
    ecosystem: CheckpointFormat, tensors: Tensors, in_file: Tensors, reading: Reading
) -> list[str]:
    """Sentences on tensors that are no part of the model, and on numbers that are not finite.

    Args:
        tensors: as the ecosystem has them. in_file: as the file has them; they share arrays.

    Raises:
        UserError: tensors of the model are missing, or there are others that nobody knows.
    """
    if reading.missing:
        missing = _missing(ecosystem.rows, reading.missing, tensors)
        raise UserError(
            f"the file holds no {summarize([_spelled(name, tensors, in_file) for name in missing])}"
            f", which the model has: it is not whole, or no {ecosystem.architecture} as it is here"
        )
    names = {id(array): name for name, array in in_file.items()}
    unknown = [name for name in reading.left_over if not ecosystem.is_ignored(name)]
    unknown, of_training = prefixes.split_training(unknown)
    if unknown:
        unknown = [names.get(id(tensors[name]), name) for name in unknown]
        raise UserError(
            f"the model has no place for {summarize(unknown)}: it is another architecture, or one "
            f"with parts that {ecosystem.architecture} does not have here"
            + prefixes.hint(unknown, in_file)
        )
    notes = list(_ignored(ecosystem, reading.left_over))
    if of_training:
        notes.append(f"left out: {summarize(of_training)} (the state of training)")
    used = [name for name in tensors if name not in {*reading.left_over}]
    return notes + list(_not_finite({names.get(id(tensors[n]), n): tensors[n] for n in used}))


def _ignored(ecosystem: CheckpointFormat, names: Sequence[str]) -> Iterator[str]:
    """A sentence for each kind of tensor that is no part of the model."""
    for pattern, reason in ecosystem.ignored.items():
        if matching := [name for name in names if re.fullmatch(pattern, name)]:
            yield f"left out: {summarize(matching)} ({reason})"


def _not_finite(tensors: Tensors) -> Iterator[str]:
    """A sentence on numbers that are NaN or infinite, with which every answer is NaN too."""
    counts = {name: np.size(x) - int(np.isfinite(x).sum()) for name, x in tensors.items()}
    bad = [f"{name} ({count} of {tensors[name].size})" for name, count in counts.items() if count]
    if bad:
        yield (
            f"warning: NaN or infinite numbers in {summarize(bad)}; what the model answers will be "
            "no numbers either: the training that made the file went wrong, or it is damaged"
        )


def _missing(rows: Sequence[Row], paths: Sequence[str], tensors: Tensors) -> list[str]:
    """The names that a file like this one has for paths of ours, as far as they are not there."""
    missing = {}
    for path in paths:
        candidates = [row for row in rows if row.names(path)]
        # Where a library has used several names, those that the other blocks of the file have.
        row = max(candidates, key=lambda row: _alike(row, tensors), default=None)
        names = row.names(path) if row else [path]
        missing |= dict.fromkeys(name for name in names if name not in tensors)
    return list(missing)


def _alike(row: Row, tensors: Tensors) -> int:
    """Return how many tensors have the names of a row, of any block."""
    theirs = (row.theirs,) if isinstance(row.theirs, str) else row.theirs
    patterns = [re.sub(r"\\\{[ij]\\\}", r"\\d+", re.escape(name)) for name in theirs]
    return sum(bool(re.fullmatch(pattern, name)) for pattern in patterns for name in tensors)


def _spelled(name: str, tensors: Tensors, in_file: Tensors) -> str:
    """A name as the file would have it: like the one most like it, but for the end."""
    full_names = {id(array): full for full, array in in_file.items()}
    best, spelled = -1, name
    for short, array in tensors.items():
        shared = _shared(name, short)
        full, end = full_names.get(id(array)), short[shared:]
        if full is not None and full.endswith(end) and shared > best:
            best, spelled = shared, full[: len(full) - len(end)] + name[shared:]
    return spelled


def _shared(one: str, other: str) -> int:
    """Return how many letters two names share at their beginning."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
