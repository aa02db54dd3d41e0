"""Names for the outputs of a file that has none, from a list that the person gives.

ImageNet-21k has been published with 21,841 to 21,843 outputs and ImageNet-1k with 1,000 or 1,001:
lists differ, and some begin with a class for background. A list of the wrong length would name
every class wrongly, so it is refused; nothing is shifted unless the person says so.
"""

import os
from pathlib import Path

from vit_jax.data.labels import normal_label
from vit_jax.errors import UserError

BACKGROUND = "background"


def read_class_names(path: str | os.PathLike) -> tuple[str, ...]:
    """The names in a text file, one a line.

    Raises UserError where the file cannot be read or a line is empty.
    """
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the class names in {path}: {error}") from error
    names = tuple(map(normal_label, lines))
    if "" in names:
        raise UserError(
            f"line {names.index('') + 1} of {path} is empty; use one class name on every line"
        )
    return names


def names_of_outputs(
    names: tuple[str, ...], outputs: int, *, background_first: bool = False
) -> tuple[str, ...]:
    """One name for every output of a head.

    Args:
        names: of the classes, in order.
        outputs: how many the head has.
        background_first: output 0 is for no class, and output i + 1 for class i.

    Raises:
        UserError: there are more or fewer names than outputs.
    """
    given = (BACKGROUND, *names) if background_first else names
    if len(given) == outputs:
        return given
    said = f"{len(names)} class names" + (" and one for background" if background_first else "")
    remedy = "give the list of the classes that it was trained on"
    if not background_first and outputs == len(names) + 1:
        remedy += ", or --background-first if output 0 is for background"
    raise UserError(f"the head has {outputs} outputs, and there are {said}; {remedy}")
