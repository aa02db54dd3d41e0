"""The configuration: read from a config and the command line, checked key by key, compared.

A config (found by `config/files.py`) is a Python file with a `get_config()` that starts from
`default_config()` and changes what it needs. On the command line
`--config.optimizer.learning_rate=3e-4` overrides a key of the config. The order of precedence is
command line, then config, then the defaults. Every key stands in the table of `config/schema.py`.
"""

import ast
import inspect
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from typing import Any

from ml_collections import ConfigDict

from vit_jax.config.aliases import suggest_key
from vit_jax.config.augment_presets import PRESETS
from vit_jax.config.files import find_config
from vit_jax.config.schema import FREE_KEYS, KEYS, REQUIRED
from vit_jax.config.values import Choice, Span, Text
from vit_jax.errors import UserError, shown

_LONGEST_LITERAL = 10_000  # characters; a longer text stays one


def default_config() -> ConfigDict:
    """A fresh configuration with the default of every key, to be changed by a config.

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


def load_config(
    config_file: str | os.PathLike, overrides: Sequence[tuple[str, Any]] | Mapping[str, Any] = ()
) -> ConfigDict:
    """The configuration of a file, the command line's overrides on top, checked key by key.

    Args:
        config_file: path of a Python file with a `get_config()`, or the name of one that comes
            with the package (`"digits"`); `file.py:argument` calls `get_config("argument")`. A
            function with the keyword `init_from` is given that key of the overrides, so that one
            file can train from scratch and fine-tune.
        overrides: dotted keys and their values, as pairs or a dictionary. A text is read as on the
            command line, `"3e-4"`; anything else is the value itself, `3e-4`, and a dictionary
            holds a whole section.

    Raises:
        UserError: for a file that cannot be read or run, a key that does not exist, a value of the
            wrong type or out of range, or a key that the file leaves to whoever runs it.
    """
    config_file = os.fspath(config_file)
    config = default_config()
    overrides = list(_pairs(overrides))
    for path, value in _run_config_file(config_file, dict(overrides).get("init_from", "")):
        _set(config, path, value, source=config_file)
    for path, value in overrides:
        _set(config, path, _from_text(path, value), source="the command line")
    _check_required(config, config_file)
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


def _pairs(overrides: Any) -> Iterator[tuple[str, Any]]:
    """Pairs of dotted key and value, those of dictionaries included."""
    items = overrides.items() if isinstance(overrides, Mapping | ConfigDict) else overrides
    for item in items:
        if not isinstance(item, Sequence) or isinstance(item, str) or len(item) != 2:
            raise UserError(
                f"an override is {shown(item)}; it is a pair of a key and its value, such as "
                '("optimizer.learning_rate", 3e-4)'
            )
        path, value = item
        if not isinstance(path, str):
            raise UserError(f"an override has the key {shown(path)}; a key is a text, like 'seed'")
        if isinstance(value, Mapping | ConfigDict) and path not in KEYS:
            yield from flatten(value, prefix=f"{path}.")
        else:
            yield path, value


def _check_required(config: ConfigDict, config_file: str) -> None:
    """Raise UserError where a file leaves a key to whoever runs it, and nobody has set it."""
    for path, key in KEYS.items():
        section, _, name = path.rpartition(".")
        if isinstance(key.legal, Text) and (config[section] if section else config)[name] == (
            REQUIRED
        ):
            raise UserError(
                f"{config_file} leaves {path} to you; use --config.{path}=...: "
                + key.meaning.removesuffix("; empty: none")
            )


def _with_preset(config: ConfigDict) -> ConfigDict:
    """The same configuration; what nobody has set has the value that its preset gives."""
    for path, value in PRESETS[config.augment.preset].items():
        section, _, name = path.partition(".")
        if config[section][name] is None:
            config[section][name] = value
    return config


def _run_config_file(config_file: str, init_from: Any) -> list[tuple[str, Any]]:
    """Run the `get_config` of a file, and return pairs of dotted key and value.

    `init_from` is that of the overrides, given to a function that takes it as a keyword.
    """
    file, argument = find_config(config_file)
    path = str(file)
    try:
        loader = SourceFileLoader("vit_jax_config", path)
        module = module_from_spec(spec_from_loader(loader.name, loader))
        sys.modules[loader.name] = module  # dataclasses look their module up there
        loader.exec_module(module)
        if not hasattr(module, "get_config"):
            raise UserError(f"{path} has no function get_config() that returns a configuration")
        arguments = [] if argument is None else [argument]
        asked = inspect.signature(module.get_config).parameters
        if argument is not None and not _takes_argument(asked.values()):
            raise UserError(
                f"{path} takes no argument, and {shown(argument)} stands after its colon; leave "
                "the colon and what follows away"
            )
        keywords = {"init_from": init_from} if "init_from" in asked else {}
        config = module.get_config(*arguments, **keywords)
        pairs = list(flatten(config)) if isinstance(config, Mapping | ConfigDict) else None
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # what a person's own file does is theirs to mend
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
        line = getattr(error, "lineno", None) or (lines[-1] if lines else "?")
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"{path}, line {line}: {type(error).__name__}: {reason}") from error
    if pairs is None:
        raise UserError(
            f"get_config() of {path} returned {type(config).__name__}, not a ConfigDict"
        )
    return pairs


def _takes_argument(parameters: Iterable[inspect.Parameter]) -> bool:
    """Return whether a function with these parameters may be called with a value alone."""
    by_place = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    )
    return any(parameter.kind in by_place for parameter in parameters)


def _set(config: ConfigDict, path: str, value: Any, source: str) -> None:
    """Set one checked value."""
    *sections, name = path.split(".")
    if path in KEYS:
        legal = KEYS[path].legal
        try:
            value = None if value is None and KEYS[path].optional else legal.convert(value)
        except ValueError as error:
            reason = f" ({error})" if str(error) else ""
            raise UserError(
                f"{source}: {path} = {shown(value)} is invalid{reason}; use {legal.describe()}"
            ) from error
    elif sections != ["model"]:  # whether the model has such a field, the model will say
        raise UserError(f"{source}: there is no key {shown(path)}{suggest_key(path)}")
    elif not name.isidentifier() or name.startswith("_") or len(name) > 100:
        raise UserError(f"{source}: a model has no field {shown(name)}; docs/models.md lists them")
    section = config
    for part in sections:
        section = section[part]
    if path not in KEYS and name in section:
        del section[name]  # or ConfigDict makes a whole number the float that stood there
    section[name] = value


def _from_text(path: str, text: Any) -> Any:
    """The value that a text on the command line stands for, at a key; what is no text stays."""
    if not isinstance(text, str):
        return text
    if path in KEYS and isinstance(KEYS[path].legal, Text | Choice | Span):
        return text
    return literal(text)


def literal(text: str) -> Any:
    """A number, tuple, None, true or false where the text looks like one; else the text itself."""
    words = {"none": None, "null": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    if len(text) > _LONGEST_LITERAL:
        return text
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):  # deep nesting too
        return text


def _plain(value: Any) -> Any:
    """A value as JSON gives it back, so that a tuple equals its list."""
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
