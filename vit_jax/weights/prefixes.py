"""Removal of prefixes from tensor names: `model.`, `net.vit.`, `student.backbone.`.

Training wraps models, and each wrapper prefixes every name: Lightning with `model.`,
DistributedDataParallel with `module.`, a user's class with the name of its attribute. Some models
have a prefix of their own (`vit.` of transformers, `features.` of torchvision), so a prefix is
removed only if the names with it belong to no known model.
"""

import re
from collections.abc import Callable, Collection, Iterator

from vit_jax.errors import UserError
from vit_jax.weights.io.safety import show
from vit_jax.weights.io.unwrap import is_of_training
from vit_jax.weights.mapping import Tensors

_MOST_PARTS = 8  # nested prefixes; the most seen are three, of DINO in Lightning


def levels(tensors: Tensors, is_model: Callable[[Tensors], bool]) -> Iterator[Tensors]:
    """Yield the tensors unchanged, then with more and more prefixes removed from their names.

    A prefix of all names is removed. If there are several prefixes, and only one of them is before
    a model, it is removed from that model's names. The other names are unknown and stay unchanged,
    so that the caller can reject them.

    Args:
        tensors: tensors by name.
        is_model: returns whether names are those of a known model.

    Raises:
        UserError: several prefixes are before models; the message lists them.
    """
    yield tensors
    for _ in range(_MOST_PARTS):
        groups = _by_first_part(tensors)
        if len(groups) == 1 and None not in groups:
            [tensors] = groups.values()
            yield tensors
            continue
        models = [part for part, below in groups.items() if part and _holds(part, below, is_model)]
        if len(models) > 1:
            found = ", ".join(show(part.rstrip("./")) for part in models[:8])
            raise UserError(
                f"the names of its tensors begin with {found}, each before a model of its own; "
                "choose one with --part=NAME (in Python: part=NAME)"
            )
        if not models:
            return
        others = {n: x for n, x in tensors.items() if not n.startswith(models[0])}
        for inner in levels(groups[models[0]], is_model):
            yield {**inner, **others}
        return


def split_training(names: Collection[str]) -> tuple[list[str], list[str]]:
    """Split names into those of a model and those of a loss, a metric or an optimizer."""
    of_training = [name for name in names if is_of_training(re.split(r"[./]", name)[0])]
    return [name for name in names if name not in set(of_training)], of_training


def hint(names: Collection[str], tensors: Tensors) -> str:
    """Return a remedy for a file with `names` beside a model; empty if none would help."""
    others = {_first_part(name) for name in names}
    inner = {_first_part(name) for name in tensors} - others
    if None in others or len(inner) != 1 or None in inner:
        return ""
    [part] = inner
    return f"; to read only the tensors under {show(part.rstrip('./'))}, use --part={part[:-1]}"


def parts_with(tensors: Tensors, is_model: Callable[[Tensors], bool]) -> list[str]:
    """Return the first parts of names that are before a model, without their separators."""
    groups = _by_first_part(tensors)
    return [part[:-1] for part, below in groups.items() if part and _holds(part, below, is_model)]


def _first_part(name: str) -> str | None:
    """Return the first part of a name with its separator, "." or "/"; None without a separator."""
    match = re.match(r"[^./]*[./](?=.)", name, re.DOTALL)
    return match[0] if match else None


def _by_first_part(tensors: Tensors) -> dict[str | None, Tensors]:
    """Group tensors by the first parts of their names, which are removed."""
    groups: dict[str | None, dict] = {}
    for name, array in tensors.items():
        part = _first_part(name)
        groups.setdefault(part, {})[name[len(part or "") :]] = array
    return groups


def _holds(part: str, below: Tensors, is_model: Callable[[Tensors], bool]) -> bool:
    """Return whether a model is below a prefix, directly or after further shared prefixes."""
    if is_of_training(part):
        return False
    for _ in range(_MOST_PARTS):
        if is_model(below):
            return True
        groups = _by_first_part(below)
        if len(groups) != 1 or None in groups:
            return False
        [below] = groups.values()
    return False
