"""Command `configs`: list the configs of the package."""

import fnmatch
import json
from typing import Annotated

import typer

from vit_jax.commands.options import AsJson
from vit_jax.commands.output import print_rows
from vit_jax.config.files import list_configs, summary
from vit_jax.errors import UserError, nearest


def configs(
    patterns: Annotated[
        list[str] | None, typer.Argument(help='Names, such as "family/*"; all by default.')
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the configs that come with the package, for --config=NAME."""
    known = list_configs()
    names: dict[str, None] = {}
    for pattern in patterns or ["*"]:
        found = [name for name in known if fnmatch.fnmatchcase(name, pattern.lower())]
        if not found:
            hint = nearest(pattern.strip("*"), known) or f"; use one of {', '.join(known)}"
            raise UserError(f"there is no config {pattern!r}{hint}")
        names |= dict.fromkeys(found)
    rows = [(name, summary(known[name])) for name in names]
    if as_json:
        keys = ("name", "summary", "path")
        return print(
            json.dumps([dict(zip(keys, (*row, str(known[row[0]])), strict=True)) for row in rows])
        )
    print_rows(("config", "description"), rows)
