"""Configuration loading: from a config file and the command line, validated key by key.

A config (found by `config/files.py`) is a Python file with a `get_config()` that starts from
`default_config()` and changes what it needs. On the command line
`--config.optimizer.learning_rate=3e-4` overrides a key of the config. The order of precedence is
command line, then config, then the defaults. `config/schema.py` has the table of all keys.
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
from vit_jax.config.schema import KEYS, OPTIMIZERS, REQUIRED, is_free
from vit_jax.config.values import Choice, ClassWeights, Evaluations, Span, Text
from vit_jax.errors import UserError, shown
from vit_jax.plugins import import_installed, import_plugins, module_names

_DEEPEST = 4  # sections of a key of a model or a task
# Sections whose further keys are validated by the model and the task that they belong to.
_OPEN_SECTIONS = {
    "model": "a model has no field {}; docs/models.md lists them",
    "objective": "a task has no field {}; docs/tasks.md lists them",
}
_LONGEST_LITERAL = 10_000  # characters; a longer text stays one


def default_config() -> ConfigDict:
    """Return a new configuration with the default of every key, to be changed by a config.

    Setting a key that does not exist fails at once; only `model` and `objective` accept new keys,
    the fields of the model and of the task.
    """
    tree: dict[str, Any] = {}
    for path, key in KEYS.items():
        *sections, name = path.split(".")
        section = tree
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = key.default
    config = ConfigDict(tree, type_safe=False).lock()
    for section in _OPEN_SECTIONS:
        config[section].unlock()
    return config


# -------------------------------------------------------------------------- reading a configuration


def load_config(
    config_file: str | os.PathLike, overrides: Sequence[tuple[str, Any]] | Mapping[str, Any] = ()
) -> ConfigDict:
    """Return the configuration of a file with overrides of the command line, validated.

    Args:
        config_file: path of a Python file with a `get_config()`, or the name of one that comes
            with the package (`"digits"`); `file.py:argument` calls `get_config("argument")`. A
            function with the keyword `init_from` gets that key of the overrides, so that one file
            can train from scratch and fine-tune.
        overrides: dotted keys and their values, as pairs or a dictionary. A string is parsed as on
            the command line, `"3e-4"`; any other value is used as it is, `3e-4`, and a dictionary
            sets a whole section.

    Raises:
        UserError: a file cannot be read or run, a key does not exist, a value has the wrong type or
            is out of range, or a key that the file requires from the user is not set.
    """
    config_file = os.fspath(config_file)
    config = default_config()
    overrides = list(_pairs(overrides))
    of_file = _run_config_file(config_file, dict(overrides).get("init_from", ""))
    said = dict([*of_file, *overrides])
    _import_plugins(said, "--config.plugins")
    task = said.get("task", config.task)
    for path, value in of_file:
        _set(config, path, value, source=config_file, task=task)
    for path, value in overrides:
        _set(config, path, _from_text(path, value), source="the command line", task=task)
    _check_required(config, config_file)
    return _with_preset(config)


def restore_config(
    record: Mapping, overrides: Sequence[tuple[str, Any]] | Mapping[str, Any] = ()
) -> ConfigDict:
    """Return the configuration stored in a run folder, validated like any other.

    overrides: as for `load_config`.
    """
    config, overrides = default_config(), list(_pairs(overrides))
    said = dict([*flatten(record), *overrides])
    _import_plugins(said, "plugins in config.json")
    task = said.get("task", config.task)
    for path, value in flatten(record):
        _set(config, path, value, source="config.json", task=task)
    for path, value in overrides:
        _set(config, path, _from_text(path, value), source="the command line", task=task)
    return _with_preset(config)


def _import_plugins(values: Mapping, asked_by: str) -> None:
    """Import the modules that a configuration names, if they may register its optimizer.

    What else they register is needed later, when the experiment is built.
    """
    if values.get("optimizer.name", OPTIMIZERS[0]) in OPTIMIZERS:
        return
    import_installed()
    try:
        names = module_names(KEYS["plugins"].allowed.convert(values.get("plugins", "")))
    except ValueError:
        return  # said when the key is set
    import_plugins(names, asked_by)


def flatten(config: Mapping, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield pairs of dotted key and value, in the order of the configuration."""
    for name, value in config.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping | ConfigDict) and path not in KEYS:
            yield from flatten(value, prefix=f"{path}.")
        else:
            yield path, value


def differences(old: Mapping, new: Mapping) -> list[str]:
    """Return a line `key: old -> new` for every changed key that a resumed run may not change."""
    old_values, new_values = dict(flatten(old)), dict(flatten(new))
    lines = []
    for path in sorted(old_values.keys() | new_values.keys()):
        before, after = old_values.get(path, "(unset)"), new_values.get(path, "(unset)")
        if _plain(before) != _plain(after) and not is_free(path):
            lines.append(f"{path}: {before} -> {after}")
    return lines


def _pairs(overrides: Any) -> Iterator[tuple[str, Any]]:
    """Yield pairs of dotted key and value, including those inside dictionaries."""
    items = overrides.items() if isinstance(overrides, Mapping | ConfigDict) else overrides
    for item in items:
        if not isinstance(item, Sequence) or isinstance(item, str) or len(item) != 2:
            raise UserError(
                f"the override {shown(item)} is invalid; use a pair of a key and its value, such "
                'as ("optimizer.learning_rate", 3e-4)'
            )
        path, value = item
        if not isinstance(path, str):
            raise UserError(f"the override key {shown(path)} is invalid; use a string like 'seed'")
        if isinstance(value, Mapping | ConfigDict) and path not in KEYS:
            yield from flatten(value, prefix=f"{path}.")
        else:
            yield path, value


def _check_required(config: ConfigDict, config_file: str) -> None:
    """Raise UserError if a key that the file requires from the user is not set."""
    for path, key in KEYS.items():
        section, _, name = path.rpartition(".")
        if isinstance(key.allowed, Text) and (config[section] if section else config)[name] == (
            REQUIRED
        ):
            raise UserError(
                f"{config_file} requires a value for {path}; use --config.{path}=...: "
                + key.meaning.removesuffix("; empty: none")
            )


def _with_preset(config: ConfigDict) -> ConfigDict:
    """Return the configuration with unset keys filled from its augmentation preset."""
    for path, value in PRESETS[config.augment.preset].items():
        section, _, name = path.partition(".")
        if config[section][name] is None:
            config[section][name] = value
    return config


def _run_config_file(config_file: str, init_from: Any) -> list[tuple[str, Any]]:
    """Run the `get_config` of a file, and return pairs of dotted key and value.

    `init_from`, from the overrides, is passed to a function that has it as a keyword.
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
                f"{path} takes no argument, but got {shown(argument)} after the colon; remove "
                "the colon and the argument"
            )
        keywords = {"init_from": init_from} if "init_from" in asked else {}
        config = module.get_config(*arguments, **keywords)
        pairs = list(flatten(config)) if isinstance(config, Mapping | ConfigDict) else None
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # a fault in the user's file is a user error
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
    """Return whether a function with these parameters accepts a positional argument."""
    by_place = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    )
    return any(parameter.kind in by_place for parameter in parameters)


def _set(config: ConfigDict, path: str, value: Any, source: str, task: str) -> None:
    """Set one checked value; `objective` has further keys for other tasks than the default."""
    *sections, name = path.split(".")
    if path in KEYS:
        allowed = KEYS[path].allowed
        try:
            value = None if value is None and KEYS[path].optional else allowed.convert(value)
        except ValueError as error:
            reason = f" ({error})" if str(error) else ""
            raise UserError(
                f"{source}: {path} = {shown(value)} is invalid{reason}; use {allowed.describe()}"
            ) from error
    elif not _is_open(config, sections) or (
        sections[0] != "model" and task == KEYS["task"].default
    ):
        raise UserError(f"{source}: there is no key {shown(path)}{suggest_key(path)}")
    elif wrong := [part for part in (*sections[1:], name) if not _is_name(part)]:
        where = _OPEN_SECTIONS[sections[0]]
        raise UserError(f"{source}: {where.format(shown(wrong[0]))}")
    section = config
    for part in sections:
        if part not in section:  # a field with names, such as `model.backbone_fields`
            section[part] = ConfigDict(type_safe=False)
        section = section[part]
    if path not in KEYS and name in section:
        del section[name]  # or ConfigDict converts an integer to the type of the old value
    section[name] = value


def _is_open(config: ConfigDict, sections: Sequence[str]) -> bool:
    """Return whether a section takes further keys: `model`, or a field of it with names.

    Names may have names below them, as `model.task_heads.depth.blocks` has.
    """
    if not 1 <= len(sections) <= _DEEPEST or sections[0] not in _OPEN_SECTIONS:
        return False
    section = config[sections[0]]
    for part in sections[1:]:
        section = section.get(part, ConfigDict())
        if not isinstance(section, ConfigDict):
            return False
    return True


def _is_name(part: str) -> bool:
    return part.isidentifier() and not part.startswith("_") and len(part) <= 100


# Their texts are no Python: "none" is a word of theirs.
_OF_TEXT = (Text, Choice, Span, ClassWeights, Evaluations)


def _from_text(path: str, text: Any) -> Any:
    """Parse a command-line text as the value of a key; return other values unchanged."""
    if not isinstance(text, str):
        return text
    if path in KEYS and isinstance(KEYS[path].allowed, _OF_TEXT):
        return text
    return literal(text)


def literal(text: str) -> Any:
    """Parse a text as a number, tuple, None, true or false; return the text if it is none."""
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
    """Convert tuples to lists, as a round trip through JSON does."""
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
