"""Splits of a sweep: every trial is tested on validation images, and the test images are kept."""

import re
from typing import NamedTuple

from ml_collections import ConfigDict

from vit_jax.errors import UserError

_PART = re.compile(r"([A-Za-z_]\w*)(?:\[(\d*)(%?):(\d*)(%?)\])?")
_SHARE = 10  # percent of the training images that are held out if there are no validation images


class Splits(NamedTuple):
    """Splits of a sweep: those that train and choose, and the one that is looked at once.

    told: a sentence on what is held out; empty if the configuration has validation images.
    """

    train: str = ""
    validation: str = ""
    test: str = ""
    told: str = ""

    def overrides(self) -> list[tuple[str, str]]:
        """Return the overrides with which a trial is trained: its test split is the validation.

        There are none for splits without names, those of a cross-validation.
        """
        if not self.validation:
            return []
        return [
            ("data.train", self.train),
            ("data.validation", ""),
            ("data.test", self.validation),
        ]


def splits_of(config: ConfigDict, swept: bool) -> Splits:
    """Return the splits of a configuration; without validation images, a tenth of the training.

    swept: whether `data.train` is swept over.

    Raises:
        UserError: the validation images cannot be taken from the training split.
    """
    train, validation, test = config.data.train, config.data.validation, config.data.test
    if config.data.fold:
        raise UserError(
            f"data.fold = {config.data.fold!r} is not possible in a sweep, which chooses on "
            "validation images; omit it, and check the winner with python -m vit_jax folds"
        )
    if validation:
        return Splits(train, validation, test)
    remedy = (
        "set both, such as --config.data.train='train[:90%]' --config.data.validation='train[90%:]'"
    )
    if swept:
        raise UserError(
            "--over data.train needs validation images that all its values leave out; name them, "
            "such as --config.data.validation='train[90%:]'"
        )
    found = _PART.fullmatch(train.strip())
    cut = _cut(found) if found else None
    if cut is None:
        raise UserError(
            f"a sweep chooses on validation images, and data.train = {train!r} cannot be divided "
            f"into such and others; {remedy}"
        )
    return Splits(
        *cut,
        test,
        f"data.validation is empty: {_SHARE} % of the training images, {cut[1]}, are held out to "
        "choose by; set data.validation to choose by others",
    )


def _cut(found: re.Match) -> tuple[str, str] | None:
    """Return the first and the last part of a split; None if it has no tenth to hold out."""
    name, first, first_unit, end, end_unit = found.groups(default="")
    if not (first or end):
        return f"{name}[:{100 - _SHARE}%]", f"{name}[{100 - _SHARE}%:]"
    unit = "%" if "%" in (first_unit, end_unit) else ""
    if (first and first_unit != unit) or (end and end_unit != unit) or not (end or unit):
        return None
    start, stop = int(first or 0), int(end or 100)
    middle = stop - max(1, round((stop - start) * _SHARE / 100))
    if middle <= start:
        return None
    before = f"{start}{unit}" if first else ""
    after = f"{stop}{unit}" if end else ""
    return f"{name}[{before}:{middle}{unit}]", f"{name}[{middle}{unit}:{after}]"
