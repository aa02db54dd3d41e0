"""Normal form of class names, names that look alike, and labels by the numbers of classes.

`é` is one code point or two, and a name may end in a space or in a zero-width character. Folders,
tables, `classes.txt` and the classes of a trained model are compared in the same normal form.
"""

import collections
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Float32, Int64, UInt8

from vit_jax.data.paths import same_form, some_of
from vit_jax.errors import UserError

# Zero-width characters: soft hyphen, zero-width space and joiners, direction marks, the word joiner
# and the byte-order mark.
_INVISIBLE = "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
_AT_THE_ENDS = re.compile(rf"^[\s{_INVISIBLE}]+|[\s{_INVISIBLE}]+$")
_ANYWHERE = re.compile(rf"[\s_{_INVISIBLE}]+")


def normal_label(text: str) -> str:
    """Normalise a label: compose it (NFC) and strip spaces and invisible characters."""
    return _AT_THE_ENDS.sub("", same_form(text))


def look_alikes(names: Iterable[str]) -> list[str]:
    """Return sentences on class names that differ only in case, spaces or invisible characters."""
    groups = collections.defaultdict(list)
    for name in names:
        plain = _ANYWHERE.sub("", unicodedata.normalize("NFKC", name).casefold())
        groups[plain].append(name)
    return [
        "class names that differ only in case, spaces or invisible characters, read as different"
        f" classes: {some_of(group, 5)}"
        for group in groups.values()
        if len(group) > 1
    ]


def number_classes(names: Iterable[str], known: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """Return the index of each name in the known names, and the unknown names.

    Names that differ only in their Unicode form are equal.

    Raises:
      UserError: a known name exists in two Unicode forms.
    """
    exact = {name: number for number, name in enumerate(known)}
    by_form = {same_form(name): number for name, number in exact.items()}
    if len(by_form) < len(exact):
        twins = [name for name in known if exact[name] != by_form[same_form(name)]]
        raise UserError(
            f"the model has the class {twins[0]!r} twice, in two Unicode forms of one name, so that"
            " its labels are ambiguous; train it again, with both as one class"
        )
    numbers = {name: exact.get(name, by_form.get(same_form(name))) for name in names}
    return numbers, [name for name, number in numbers.items() if number is None]


def soft_label_rows(
    shares: Sequence[Mapping[str, float]], numbers: Mapping[str, int], classes: int
) -> Float32[np.ndarray, "n classes"]:
    """Return the probabilities of classes by their numbers; read-only.

    Args:
      shares: probabilities of each example by the name of a class; 0 for others.
      numbers: of all names whose probability is above 0.
      classes: their number.
    """
    rows = np.zeros((len(shares), classes), np.float32)
    for row, of in zip(rows, shares, strict=True):
        likely = {numbers[name]: share for name, share in of.items() if share}
        row[list(likely)] = list(likely.values())
    rows.flags.writeable = False
    return rows


def labels_of_soft(
    rows: Float32[np.ndarray, "n classes"], several: bool
) -> Int64[np.ndarray, " n"] | UInt8[np.ndarray, "n classes"]:
    """Return the most probable class of each row, or 1 for those above 1/2 of several labels."""
    return (rows > 0.5).astype(np.uint8) if several else rows.argmax(axis=1)


def unknown_to_model(dataset: str, unknown: Sequence[str], class_names: Sequence[str]) -> str:
    """Return the message for classes that a model was not trained on."""
    return (
        f"{dataset} has classes that the model was not trained on: {some_of(unknown)}; the model's"
        f" classes are {some_of(class_names, 10)}"
    )
