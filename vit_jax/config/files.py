"""Lookup of config files by path or by name, such as `digits` and `family/swin`.

The repository has them in its top-level folder `configs`; an installed package has the same files
in `vit_jax/configs` (setup.py). A name therefore works both in a checkout and anywhere else.
"""

import ast
import os
from pathlib import Path

from vit_jax.errors import UserError, nearest, shown

_PACKAGE = Path(__file__).parents[1]
_MOST_SIBLINGS = 200  # files of the user's folder that are searched for a hint


def config_folder() -> Path:
    """Return the folder of the configs that come with the package."""
    installed = _PACKAGE / "configs"
    return installed if installed.is_dir() else _PACKAGE.parent / "configs"


def list_configs() -> dict[str, Path]:
    """Return the files of the configs that come with the package, by name, in alphabetical order.

    Files of the folder itself come before those of its subfolders (`family/swin`); the bases in
    `common` are not configs.
    """
    folder = config_folder()
    files = [*sorted(folder.glob("*.py")), *sorted(folder.glob("*/*.py"))]
    named = ((file.relative_to(folder).with_suffix("").as_posix(), file) for file in files)
    return {
        name: file
        for name, file in named
        if not file.name.startswith("_") and not name.startswith("common/")
    }


def find_config(text: str | os.PathLike) -> tuple[Path, str | None]:
    """Return the file of a config, and the argument after its colon (None without one).

    Args:
        text: path of a Python file, or a name of `list_configs()`, with or without `configs/` in
            front and `.py` at the end; either may end in `:ARGUMENT`. An existing file takes
            precedence over a name.

    Raises:
        UserError: neither exists; the message has the nearest names and all available ones.
    """
    text = os.fspath(text)
    before, colon, after = text.rpartition(":")
    readings = [(text, None), *([(before, after)] if colon else [])]
    for written, argument in readings:
        path = os.path.expanduser(written)
        if os.path.isfile(path):
            return Path(path), argument
    known = list_configs()
    for written, argument in readings:
        if _name(written) in known:
            return known[_name(written)], argument
    raise UserError(_missing(before if colon else text))


def summary(path: Path) -> str:
    """Return the first line of the docstring of a config, without running it."""
    lines = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").splitlines()
    return lines[0] if lines else ""


def _name(written: str) -> str:
    return written.removeprefix("configs/").removesuffix(".py")


def _missing(written: str) -> str:
    """Return the message for a config that does not exist."""
    known, name = list_configs(), _name(written)
    folder = os.path.dirname(os.path.expanduser(written))
    siblings = _configs_in(folder or ".")
    same_end = [one for one in known if one.rpartition("/")[2] == name.rpartition("/")[2]]
    if same_end:
        hint = "; did you mean " + " or ".join(map(repr, same_end)) + "?"
    elif folder and siblings:
        hint = nearest(written, siblings)
    else:
        hint = nearest(name, [*known, *siblings]) or nearest(written, siblings)
    what = " (a folder)" if os.path.isdir(written) else ""
    own = f"{folder} has {', '.join(siblings)}, and the" if folder and siblings else "The"
    return (
        f"there is no config file {shown(written)}{what}{hint or '.'} {own} package has "
        f"{', '.join(known) or 'none'}"
    )


def _configs_in(folder: str) -> list[str]:
    """Return the paths of the user's files in a folder that define `get_config`."""
    found: list[str] = []
    if not os.path.isdir(folder):
        return found
    if Path(folder).resolve().is_relative_to(config_folder().resolve()):
        return found
    for path in sorted(Path(folder).glob("*.py"))[:_MOST_SIBLINGS]:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:  # a broken link, or no permission
            continue
        if "def get_config" in text:
            found.append(str(path))
    return found
