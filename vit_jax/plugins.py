"""Modules of a user's own, imported by name, so that the architectures they register are known.

No folder is added to where Python looks for modules: `PYTHONPATH` or an installed package says so.
"""

import importlib
import sys
import traceback
from collections.abc import Iterable

from vit_jax.errors import UserError

# Names under which the code of a script, a notebook or a config runs: no other process has them.
NOT_IMPORTABLE = ("__main__", "vit_jax_config")


def module_names(text: str) -> tuple[str, ...]:
    """Return the names in the value of the key `plugins`, which has commas between them."""
    return tuple(filter(None, text.split(",")))


def import_plugins(names: Iterable[str], asked_by: str) -> None:
    """Import modules by their dotted names; those that are imported already stay as they are.

    Args:
        asked_by: what names them, for the sentence of an error: a config key or a file.

    Raises:
        UserError: there is no such module, or it fails; the sentence says which and where.
    """
    for name in names:
        if name in NOT_IMPORTABLE:
            raise UserError(
                f"{asked_by}: the class of the model was defined in a script, a notebook or a "
                "config, which no other process can import; move it into a module of its own, "
                f"with its call of register, and write the module's name for {name!r}"
            )
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):  # what the module itself imports
                raise _failed(name, asked_by, error) from error
            raise UserError(
                f"{asked_by} names the module {name!r}, and Python finds none of that name in "
                f"{', '.join(repr(path) for path in sys.path[:3])} or among installed packages; "
                "set PYTHONPATH to the folder that holds it, or install it"
            ) from error
        except Exception as error:  # the code of a module can raise anything
            raise _failed(name, asked_by, error) from error


def _failed(name: str, asked_by: str, error: Exception) -> UserError:
    """The sentence on a module that raises while it is imported."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if len(frames) > 1 else ""
    reason = str(error).strip().split("\n")[0]
    return UserError(
        f"{asked_by}: importing the module {name!r} failed{where}: {type(error).__name__}: {reason}"
    )
