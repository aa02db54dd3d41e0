"""Plugins: a user's modules, imported by name, so that what they register is known.

A module registers architectures, tasks, evaluators, optimizers, sources or transforms. It is named
by the key `plugins`, or it belongs to an installed package whose `pyproject.toml` has

    [project.entry-points."vit_jax.plugins"]
    mine = "my_package.models"

No folder is added to Python's search path: use `PYTHONPATH` or an installed package.
"""

import functools
import importlib
import importlib.metadata
import sys
import traceback
from collections.abc import Iterable

from vit_jax.errors import UserError

GROUP = "vit_jax.plugins"  # of entry points

# Module names of code that runs as a script, a notebook or a config: no other process has them.
NOT_IMPORTABLE = ("__main__", "vit_jax_config")


def module_names(text: str) -> tuple[str, ...]:
    """Return the comma-separated names in the value of the key `plugins`."""
    return tuple(filter(None, text.split(",")))


def import_plugins(names: Iterable[str], asked_by: str) -> None:
    """Import modules by their dotted names; modules that are imported already are not reloaded.

    Args:
        asked_by: the config key or file that names them, for error messages.

    Raises:
        UserError: there is no such module, or its import fails; the message has the place.
    """
    for name in names:
        if name in NOT_IMPORTABLE:
            raise UserError(
                f"{asked_by}: the class of the model was defined in a script, a notebook or a "
                "config, which no other process can import; move it and its call of register into "
                f"a module of its own, and replace {name!r} by the name of that module"
            )
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):  # what the module itself imports
                raise _failed(name, asked_by, error) from error
            raise UserError(
                f"{asked_by} names the module {name!r}, which is neither in "
                f"{', '.join(repr(path) for path in sys.path[:3])} nor among installed packages; "
                "set PYTHONPATH to the folder that holds it, or install it"
            ) from error
        except Exception as error:  # the code of a module can raise anything
            raise _failed(name, asked_by, error) from error


@functools.cache
def import_installed() -> None:
    """Import the modules that installed packages declare as plugins, once.

    Raises:
        UserError: the import of one of them fails.
    """
    for entry in importlib.metadata.entry_points(group=GROUP):
        import_plugins([entry.module], f"the entry point {entry.name!r} of an installed package")


def _failed(name: str, asked_by: str, error: Exception) -> UserError:
    """Return the error for a module whose import raises."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if len(frames) > 1 else ""
    reason = str(error).strip().split("\n")[0]
    return UserError(
        f"{asked_by}: importing the module {name!r} failed{where}: {type(error).__name__}: {reason}"
    )
