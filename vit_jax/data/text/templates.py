"""Templates: sentences with a place for the name of a class, `a photo of a {}`.

    templates = read_templates("templates.txt")     # one on each line
    fill(templates, "cat")                          # ["a photo of a cat", ...]

A class is described by several sentences, because a name alone is ambiguous and rare among captions
(Radford et al. 2021, section 3.1.4).
"""

import os
from collections.abc import Sequence
from pathlib import Path

from vit_jax.data.text.tokenizer import read_bytes
from vit_jax.errors import UserError, shown
from vit_jax.text import counted

PLACE = "{}"
TEMPLATES = (
    "a photo of a {}",
    "a photo of the {}",
    "a picture of a {}",
    "a close-up of a {}",
    "a photo of a small {}",
    "a photo of a large {}",
    "a bright photo of a {}",
    "a dark photo of a {}",
    "a blurry photo of a {}",
    "a drawing of a {}",
    "a {} seen from afar",
    "here is a {}",
)
"""For photos of things."""


def read_templates(path: str | os.PathLike) -> tuple[str, ...]:
    """Read templates from a text file in UTF-8, one on each line; empty lines do not count.

    Raises:
        UserError: the file cannot be read, or a line has not one `{}`.
    """
    try:
        text = read_bytes(Path(path)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no text in UTF-8: {error.reason}") from error
    return check_templates([line.strip() for line in text.splitlines() if line.strip()], str(path))


def check_templates(templates: Sequence[str], where: str = "templates") -> tuple[str, ...]:
    """Return templates as a tuple. Raises UserError for none, or one without a single `{}`."""
    if not templates:
        raise UserError(f"{where}: there is no template; write one such as 'a photo of a {PLACE}'")
    wrong = [one for one in templates if one.count(PLACE) != 1]
    if wrong:
        raise UserError(
            f"{where}: {len(wrong):,} of {counted(len(templates), 'template')} must have {PLACE} "
            f"once, in the place of a class; the first is {shown(wrong[0])}"
        )
    return tuple(templates)


def fill(templates: Sequence[str], name: str) -> list[str]:
    """Return the templates with a name in their place."""
    return [template.replace(PLACE, name) for template in templates]
