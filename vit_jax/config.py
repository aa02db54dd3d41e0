"""The configuration: read from a recipe and the command line, checked key by key, compared.

A recipe in `configs/` is a Python file with a `get_config()` that starts from `default_config()`
and changes what it needs. On the command line `--config.optimizer.learning_rate=3e-4` overrides a
key of the recipe. The order of precedence is command line, then recipe, then the defaults. Every
key stands in the table of `keys.py`.
"""

import ast
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from vit_jax.errors import UserError, nearest
from vit_jax.keys import FREE_KEYS, KEYS, Choice, Span, Text
from vit_jax.presets import PRESETS


def default_config() -> ConfigDict:
    """A fresh configuration with the default of every key, to be changed by a recipe.

    Setting a key that does not exist fails at once; `model` alone takes new keys, the fields of the
    model named there.
    """
    tree: dict[str, Any] = {}
    for path, key in KEYS.items():
        *sections, name = path.split(".")
        section = tree
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = key.default
    config = ConfigDict(tree, type_safe=False).lock()
    config.model.unlock()
    return config


# -------------------------------------------------------------------------- reading a configuration


def load_config(recipe: str, overrides: Sequence[tuple[str, str]] = ()) -> ConfigDict:
    """The configuration of a recipe, the command line's overrides on top, checked key by key.

    Args:
        recipe: path of a Python file with a `get_config()`; `file.py:argument` calls
            `get_config("argument")`.
        overrides: pairs of a dotted key and the text of its value.

    Raises:
        UserError: for a file that cannot be read or run, a key that does not exist, or a value of
            the wrong type or out of range.
    """
    config = default_config()
    for path, value in flatten(_run_recipe(recipe)):
        _set(config, path, value, source=recipe)
    for path, text in overrides:
        _set(config, path, _from_text(path, text), source="the command line")
    return _with_preset(config)


def restore_config(record: Mapping) -> ConfigDict:
    """The configuration that a run folder keeps, checked like any other."""
    config = default_config()
    for path, value in flatten(record):
        _set(config, path, value, source="config.json")
    return _with_preset(config)


def flatten(config: Mapping, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Pairs of dotted key and value, in the order of the configuration."""
    for name, value in config.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping | ConfigDict) and path not in KEYS:
            yield from flatten(value, prefix=f"{path}.")
        else:
            yield path, value


def differences(old: Mapping, new: Mapping) -> list[str]:
    """Lines `key: old -> new` for every key that differs and may not differ when a run goes on."""
    old_values, new_values = dict(flatten(old)), dict(flatten(new))
    lines = []
    for path in sorted(old_values.keys() | new_values.keys()):
        before, after = old_values.get(path, "(unset)"), new_values.get(path, "(unset)")
        free = any(path == key or path.startswith(f"{key}.") for key in FREE_KEYS)
        if _plain(before) != _plain(after) and not free:
            lines.append(f"{path}: {before} -> {after}")
    return lines


def _with_preset(config: ConfigDict) -> ConfigDict:
    """The same configuration; what nobody has set has the value that its preset gives."""
    for path, value in PRESETS[config.augment.preset].items():
        section, _, name = path.partition(".")
        if config[section][name] is None:
            config[section][name] = value
    return config


def _run_recipe(recipe: str) -> ConfigDict:
    """Runs the `get_config` of a recipe file."""
    path, argument = str(Path(recipe).expanduser()), None
    if not Path(path).exists() and ":" in recipe:
        path, argument = recipe.rsplit(":", 1)
    if not Path(path).is_file():
        beside = Path(path).parent if Path(path).parent.is_dir() else Path("configs")
        known = sorted(str(file) for file in beside.glob("*.py"))
        there = f"; in {beside} there are {', '.join(known)}" if known else ""
        raise UserError(f"there is no configuration file {path}{nearest(path, known) or there}")
    try:
        loader = SourceFileLoader("vit_jax_recipe", path)
        module = module_from_spec(spec_from_loader(loader.name, loader))
        sys.modules[loader.name] = module  # dataclasses look their module up there
        loader.exec_module(module)
        if not hasattr(module, "get_config"):
            raise UserError(f"{path} has no function get_config() that returns a configuration")
        config = module.get_config() if argument is None else module.get_config(argument)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # what a person's own file does is theirs to mend
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
        line = getattr(error, "lineno", None) or (lines[-1] if lines else "?")
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"{path}, line {line}: {type(error).__name__}: {reason}") from error
    if not isinstance(config, Mapping | ConfigDict):
        raise UserError(
            f"get_config() of {path} returned {type(config).__name__}, not a ConfigDict"
        )
    return config


def _set(config: ConfigDict, path: str, value: Any, source: str) -> None:
    """Sets one checked value."""
    *sections, name = path.split(".")
    if path in KEYS:
        legal = KEYS[path].legal
        try:
            value = None if value is None and KEYS[path].optional else legal.convert(value)
        except ValueError as error:
            reason = f" ({error})" if str(error) else ""
            raise UserError(
                f"{source}: {path} = {value!r} is not legal{reason}; write {legal.describe()}"
            ) from error
    elif sections != ["model"]:  # whether the model has such a field, the model will say
        known = [*KEYS, "model.FIELD"]
        raise UserError(f"{source}: there is no key {path!r}{_nearest_key(path, known)}")
    section = config
    for part in sections:
        section = section[part]
    section[name] = value


def _nearest_key(path: str, known: list[str]) -> str:
    """Nearest full key, or, for a key given without its section, the keys that end the same."""
    last = path.rsplit(".", 1)[-1]
    same_end = [key for key in known if key.rsplit(".", 1)[-1] == last]
    if same_end:
        return "; did you mean " + " or ".join(repr(key) for key in same_end) + "?"
    inside = [key for key in known if key.startswith(f"{path}.")]
    if inside:
        return f"; it is a section with the keys {', '.join(inside)}"
    return nearest(path, known) or f"; the keys are {', '.join(known)}"


def _from_text(path: str, text: str) -> Any:
    """The value that a text on the command line stands for, at a key."""
    if path in KEYS and isinstance(KEYS[path].legal, Text | Choice | Span):
        return text
    return literal(text)


def literal(text: str) -> Any:
    """A number, tuple, None, true or false where the text looks like one; else the text itself."""
    words = {"none": None, "null": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _plain(value: Any) -> Any:
    """A value as JSON gives it back, so that a tuple equals its list."""
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
