"""Reference pages of configuration keys, configs and commands, from the tables of the code."""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import typer.main

from vit_jax.commands.app import app
from vit_jax.config.aliases import short_names
from vit_jax.config.augment_presets import PRESETS
from vit_jax.config.files import list_configs, summary
from vit_jax.config.schema import FREE_KEYS, KEYS


def table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = ()
) -> str:
    """Return a Markdown table with line breaks and bars in cells escaped.

    numbers: headings of right-aligned columns.
    """
    below = ["---:" if heading in numbers else "---" for heading in headings]
    cells = (
        [" ".join(cell.split()).replace("|", "\\|") for cell in line]
        for line in (headings, below, *rows)
    )
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def code(text: str) -> str:
    """Return a text as inline code, or nothing for an empty one."""
    return f"`{text}`" if text else ""


# ---------------------------------------------------------------------------------- configuration


def config_keys() -> str:
    """Return the page of every configuration key, by section."""
    parts = [
        "# Configuration keys\n",
        "Each is set in a config (`config.optimizer.learning_rate = 3e-4`) or on the command line "
        "(`--config.optimizer.learning_rate=3e-4`), which takes precedence. "
        "`vit_jax train --keys WORD` searches the same table. Fields of the model are "
        "`model.FIELD`: see [Models](../models.md).\n",
        "**Elsewhere** lists names of a key in other trainers; using one is an error that gives "
        "the right name.\n",
        "Keys whose default is `None` take their value from `augment.preset`, from the weights in "
        "`init_from`, or from the model. A resumed run may change "
        + ", ".join(code(key) for key in FREE_KEYS)
        + "; any other difference is an error.\n",
    ]
    names = short_names()

    def section(path: str) -> str:
        return path.rpartition(".")[0]

    for name, paths in groupby(sorted(KEYS, key=lambda path: _order(section(path))), section):
        rows = [
            (
                code(path),
                code(repr(KEYS[path].default)),
                f"{_linked(KEYS[path].meaning)}<br>*{KEYS[path].allowed.describe()}*",
                ", ".join(name.replace("_", "\\_") for name in names.get(path, ())),
            )
            for path in paths
        ]
        parts.append(f"## {name or 'run'}\n")
        parts.append(table(("key", "default", "meaning, and *valid values*", "elsewhere"), rows))
    parts.append("## Presets of augmentation\n")
    keys = dict.fromkeys(key for preset in PRESETS.values() for key in preset)
    rows = [
        (
            code(key),
            *(code(repr(preset[key])) if key in preset else "" for preset in PRESETS.values()),
        )
        for key in keys
    ]
    parts.append(table(("key", *map(code, PRESETS)), rows))
    return "\n".join(parts)


def _linked(meaning: str) -> str:
    """Return the meaning of a key with links to the guides that it mentions."""
    return re.sub(r"docs/(\w+)\.md", r"[\1](../\1.md)", meaning)


def _order(section: str) -> int:
    """Return the index of a section in the order of the table, the root section first."""
    return list(dict.fromkeys(path.rpartition(".")[0] for path in KEYS)).index(section)


def configs() -> str:
    """Return the page of the configs in the package."""
    rows = [(code(name), summary(path)) for name, path in list_configs().items()]
    return (
        "# Configs\n\nThey come with the package: `vit_jax train --config=NAME` works from any "
        "folder, and `vit_jax configs` prints this table. The docstring of each gives its command, "
        "its accuracy and its cost.\n\n" + table(("name", "description"), rows)
    )


# --------------------------------------------------------------------------------------- commands


def commands() -> str:
    """Return the page of every command with its arguments and options."""
    group = typer.main.get_command(app)
    parts = [
        "# Commands\n",
        "`vit_jax COMMAND` after `pip install .`, or `python -m vit_jax COMMAND` in a checkout; "
        "`python train.py` is `vit_jax train`. Every command has `--help`. Exit codes: 0 done, 1 "
        "internal error (with its traceback), 2 an error in the command, the configuration or the "
        "data (one sentence), 3 training diverged, 75 interrupted by a signal after saving.\n",
        table(
            ("command", ""),
            [(f"[`{name}`](#{name})", one.help or "") for name, one in group.commands.items()],
        ),
    ]
    for name, command in group.commands.items():
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        usage = " ".join([*map(_usage, arguments), "[OPTIONS]"])
        parts += [f"## {name}\n", f"{command.help}\n", f"```\nvit_jax {name} {usage}\n```\n"]
        rows = [(_name(one), _default(one), one.help or "") for one in command.params]
        parts.append(table(("argument", "default", "meaning"), rows))
    return "\n".join(parts)


def _usage(argument: Any) -> str:
    name = (argument.metavar or argument.name).upper() + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return code((parameter.metavar or parameter.name).upper())
    return ", ".join(code(option) for option in parameter.opts)


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required or value in (None, "", False, ()) or callable(value):
        return ""
    return code(str(value))
