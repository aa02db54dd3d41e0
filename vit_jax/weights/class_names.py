"""Class names from the user's list for a file without names.

ImageNet-21k has been published with 21,841 to 21,843 outputs and ImageNet-1k with 1,000 or 1,001:
lists differ, and some begin with a class for background. A list of the wrong length would name
every class wrongly, so it is an error; names are shifted only on request.
"""

import os
from pathlib import Path

from vit_jax.data.labels import normal_label
from vit_jax.errors import UserError

BACKGROUND = "background"


def read_class_names(path: str | os.PathLike) -> tuple[str, ...]:
    """Read the names in a text file, one per line.

    Raises UserError if the file cannot be read or a line is empty.
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
    """Return one name for every output of a head.

    Args:
        names: class names, in order.
        outputs: number of outputs of the head.
        background_first: output 0 is the background, and output i + 1 is class i.

    Raises:
        UserError: the numbers of names and outputs differ.
    """
    given = (BACKGROUND, *names) if background_first else names
    if len(given) == outputs:
        return given
    said = f"{len(names)} class names" + (" and one for background" if background_first else "")
    remedy = "use the list of the classes that it was trained on"
    if not background_first and outputs == len(names) + 1:
        remedy += ", or --background-first if output 0 is for background"
    raise UserError(f"the head has {outputs} outputs, but there are {said}; {remedy}")
