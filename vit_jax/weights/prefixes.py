"""Prefixes of the names of a model: `model.`, `net.vit.`, `student.backbone.`.

Training wraps models, and each wrapper puts a part before every name: Lightning `model.`,
DistributedDataParallel `module.`, a class of one's own the name of its attribute. Some models have
a first part of their own (`vit.` of transformers, `features.` of torchvision), so a part is removed
only where the names as they are belong to no known model.
"""

import re
from collections.abc import Callable, Collection, Iterator

from vit_jax.errors import UserError
from vit_jax.weights.io.safety import show
from vit_jax.weights.io.unwrap import is_of_training
from vit_jax.weights.mapping import Tensors

_MOST_PARTS = 8  # in front of each other; the longest seen, of DINO in Lightning, are three


def levels(tensors: Tensors, is_model: Callable[[Tensors], bool]) -> Iterator[Tensors]:
    """Yield the tensors as they are, then with more and more first parts removed from names.

    A part that all names share is removed. Where there are several, and only one of them stands
    before a model, it is removed from that model's names. The other names stay as they are: nobody
    knows what they belong to, so the caller has to refuse them.

    Args:
        tensors: by name.
        is_model: whether names are those of a model that is known.

    Raises:
        UserError: several parts stand before models, which the sentence lists.
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
    """Names of a model, and those of a loss, a metric or an optimizer beside it."""
    of_training = [name for name in names if is_of_training(re.split(r"[./]", name)[0])]
    return [name for name in names if name not in set(of_training)], of_training


def hint(names: Collection[str], tensors: Tensors) -> str:
    """Remedy for a file in which `names` stand beside a model; empty where it would not help."""
    others = {_first_part(name) for name in names}
    inner = {_first_part(name) for name in tensors} - others
    if None in others or len(inner) != 1 or None in inner:
        return ""
    [part] = inner
    return f"; to read what stands under {show(part.rstrip('./'))} alone, give --part={part[:-1]}"


def _first_part(name: str) -> str | None:
    """The first part of a name with the mark behind it, "." or "/"; None where it has one only."""
    match = re.match(r"[^./]*[./](?=.)", name, re.DOTALL)
    return match[0] if match else None


def _by_first_part(tensors: Tensors) -> dict[str | None, Tensors]:
    """The tensors by the first parts of their names, which they come without."""
    groups: dict[str | None, dict] = {}
    for name, array in tensors.items():
        part = _first_part(name)
        groups.setdefault(part, {})[name[len(part or "") :]] = array
    return groups


def _holds(part: str, below: Tensors, is_model: Callable[[Tensors], bool]) -> bool:
    """Return whether a model stands below a part, directly or behind further shared parts."""
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
