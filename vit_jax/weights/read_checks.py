"""Checks of a file after reading its tensors: missing, unexpected, or NaN.

Messages use the tensor names of the file, with all prefixes, and not our paths.
"""

import re
from collections.abc import Iterator, Sequence

import numpy as np

from vit_jax.errors import UserError
from vit_jax.weights import prefixes
from vit_jax.weights.formats import CheckpointFormat
from vit_jax.weights.mapping import Reading, Row, Tensors, summarize


def check_read(
    file_format: CheckpointFormat, tensors: Tensors, in_file: Tensors, reading: Reading
) -> list[str]:
    """Return notes on tensors that are no part of the model, and on non-finite numbers.

    Args:
        tensors: by names of the format. in_file: by names of the file; both share arrays.

    Raises:
        UserError: tensors of the model are missing, or there are unknown ones.
    """
    if reading.missing:
        missing = _missing(file_format.rows, reading.missing, tensors)
        raise UserError(
            f"the file has no {summarize([_spelled(name, tensors, in_file) for name in missing])}, "
            "which the model needs: it is incomplete, or another variant of "
            f"{file_format.architecture}"
        )
    names = {id(array): name for name, array in in_file.items()}
    unknown = [name for name in reading.left_over if not file_format.is_ignored(name)]
    unknown, of_training = prefixes.split_training(unknown)
    if unknown:
        unknown = [names.get(id(tensors[name]), name) for name in unknown]
        raise UserError(
            f"the model has no parameter for {summarize(unknown)}: the file has another "
            f"architecture, or parts that are not supported in {file_format.architecture}"
            + prefixes.hint(unknown, in_file)
        )
    notes = list(_ignored(file_format, reading.left_over))
    if of_training:
        notes.append(f"skipped: {summarize(of_training)} (the state of training)")
    used = [name for name in tensors if name not in {*reading.left_over}]
    return notes + list(_not_finite({names.get(id(tensors[n]), n): tensors[n] for n in used}))


def _ignored(file_format: CheckpointFormat, names: Sequence[str]) -> Iterator[str]:
    """Yield a note for each type of tensor that is no part of the model."""
    for pattern, reason in file_format.ignored.items():
        if matching := [name for name in names if re.fullmatch(pattern, name)]:
            yield f"skipped: {summarize(matching)} ({reason})"


def _not_finite(tensors: Tensors) -> Iterator[str]:
    """Yield a note on NaN or infinite numbers, which make every output NaN."""
    counts = {name: np.size(x) - int(np.isfinite(x).sum()) for name, x in tensors.items()}
    bad = [f"{name} ({count} of {tensors[name].size})" for name, count in counts.items() if count]
    if bad:
        yield (
            f"warning: NaN or infinite numbers in {summarize(bad)}, so that outputs of the model "
            "will be NaN: its training has diverged, or the file is damaged"
        )


def _missing(rows: Sequence[Row], paths: Sequence[str], tensors: Tensors) -> list[str]:
    """Return the missing tensors' names for paths of ours, in the naming of this file."""
    missing = {}
    for path in paths:
        candidates = [row for row in rows if row.names(path)]
        # If a library has used several names, the names of the file's other blocks.
        row = max(candidates, key=lambda row: _alike(row, tensors), default=None)
        names = row.names(path) if row else [path]
        missing |= dict.fromkeys(name for name in names if name not in tensors)
    return list(missing)


def _alike(row: Row, tensors: Tensors) -> int:
    """Return the number of tensors with the names of a row, in any block."""
    theirs = (row.theirs,) if isinstance(row.theirs, str) else row.theirs
    patterns = [re.sub(r"\\\{[ij]\\\}", r"\\d+", re.escape(name)) for name in theirs]
    return sum(bool(re.fullmatch(pattern, name)) for pattern in patterns for name in tensors)


def _spelled(name: str, tensors: Tensors, in_file: Tensors) -> str:
    """Return a name with the prefix of the most similar name in the file."""
    full_names = {id(array): full for full, array in in_file.items()}
    best, spelled = -1, name
    for short, array in tensors.items():
        shared = _shared(name, short)
        full, end = full_names.get(id(array)), short[shared:]
        if full is not None and full.endswith(end) and shared > best:
            best, spelled = shared, full[: len(full) - len(end)] + name[shared:]
    return spelled


def _shared(one: str, other: str) -> int:
    """Return the length of the common beginning of two names."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
