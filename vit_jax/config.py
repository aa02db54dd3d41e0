"""The configuration: every key, what it means and which values are legal, in one table.

A recipe in `configs/` is a Python file with a `get_config()` that starts from `default_config()`
and changes what it needs. On the command line `--config.optimizer.learning_rate=3e-4` overrides a
key of the recipe. The order of precedence is command line, then recipe, then the defaults below.

What is checked here is one key at a time; what keys mean together (is the warm-up shorter than the
run? does the batch divide over the devices?) is checked in `training/checks.py`. A key whose
default is None takes its value from `augment.preset` (`presets.py`) once all else is read.
"""

import ast
import numbers
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from vit_jax.durations import FORMS, parse_duration
from vit_jax.errors import UserError, nearest
from vit_jax.presets import PRESETS

# ---------------------------------------------------------------------------- kinds of legal values


@dataclass(frozen=True)
class Integer:
    """A whole number from `low` to 2**31 - 1, or one of `extra`."""

    low: int = 0
    extra: tuple[int, ...] = ()

    def describe(self) -> str:
        also = "".join(f" or {value}" for value in self.extra)
        return f"a whole number of at least {self.low}{also}"

    def convert(self, value: Any) -> int:
        legal = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        if not legal or not (self.low <= value < 2**31 or value in self.extra):
            raise ValueError
        return int(value)


@dataclass(frozen=True)
class Number:
    """A real number between `low` and `high`, the ends included."""

    low: float = 0.0
    high: float = float("inf")

    def describe(self) -> str:
        if self.high == float("inf"):
            return f"a number of at least {self.low:g}"
        return f"a number between {self.low:g} and {self.high:g}"

    def convert(self, value: Any) -> float:
        legal = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not legal or not self.low <= value <= self.high or value == float("inf"):
            raise ValueError
        return float(value)


@dataclass(frozen=True)
class Numbers:
    """One number, or one for each channel of the pictures."""

    def describe(self) -> str:
        return "one number, or one for each channel, such as (0.485, 0.456, 0.406)"

    def convert(self, value: Any) -> tuple[float, ...]:
        values = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
        return tuple(Number(low=-float("inf")).convert(number) for number in values)


@dataclass(frozen=True)
class Flag:
    """True or false."""

    def describe(self) -> str:
        return "true or false"

    def convert(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value


@dataclass(frozen=True)
class Choice:
    """One of a few words."""

    options: tuple[str, ...]

    def describe(self) -> str:
        return "one of " + ", ".join(self.options)

    def convert(self, value: Any) -> str:
        if value not in self.options:
            raise ValueError
        return value


@dataclass(frozen=True)
class Text:
    """Any text; `filled` says that it may not be empty."""

    filled: bool = False

    def describe(self) -> str:
        return "a text that is not empty" if self.filled else "a text"

    def convert(self, value: Any) -> str:
        if not isinstance(value, str) or (self.filled and not value):
            raise ValueError
        return value


@dataclass(frozen=True)
class Span:
    """A duration; `zero` says whether none at all is legal too."""

    zero: bool = False

    def describe(self) -> str:
        return f"a duration: {FORMS}" + ("" if self.zero else ", more than 0")

    def convert(self, value: Any) -> str:
        duration = parse_duration(value)
        if duration.amount == 0 and not self.zero:
            raise ValueError
        return str(value)


# --------------------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Key:
    """One key: its default, what it means, and which values are legal.

    preset: whether None is legal too, and is replaced by the value of `augment.preset`.
    """

    default: Any
    meaning: str
    legal: Integer | Number | Numbers | Flag | Choice | Text | Span
    preset: bool = False


def _of_preset(path: str, meaning: str, legal: Integer | Number | Flag | Choice) -> dict[str, Key]:
    """A key that takes its value from `augment.preset` where nobody sets it."""
    return {path: Key(None, meaning, legal, preset=True)}


KEYS: dict[str, Key] = {
    "seed": Key(
        0, "random numbers of initialisation, data order, augmentation, dropout", Integer()
    ),
    # Data: where pictures come from and how they are made to fit the model.
    "dataset": Key(
        "digits",
        "folder:PATH, csv:PATH, jsonl:PATH, tfds:NAME of TensorFlow Datasets, or digits",
        Text(),
    ),
    "data.train": Key("train", "split to learn from, or a part: train[:90%]", Text(filled=True)),
    "data.validation": Key(
        "", "part of the training data to choose 'best' by; empty: none", Text()
    ),
    "data.test": Key("test", "split to report on; it never chooses anything", Text(filled=True)),
    "data.dir": Key(
        "", "where TensorFlow Datasets keeps prepared data; empty: its own default", Text()
    ),
    "data.manual_dir": Key(
        "", "files fetched by hand for a set of TensorFlow Datasets; empty: none", Text()
    ),
    "data.holdout": Key(
        0.2, "share of each class held out as test where a dataset has no such split", Number(0, 1)
    ),
    "data.sampling": Key(
        "natural",
        "natural: every picture once an epoch; balanced: every class equally often",
        Choice(("natural", "balanced")),
    ),
    "data.strict": Key(
        False, "whether a picture that cannot be read ends the run; else it is replaced", Flag()
    ),
    "data.mean": Key((0.5,), "subtracted from pixels scaled to 0..1, per channel", Numbers()),
    "data.std": Key((0.5,), "divides the pixels after that, per channel", Numbers()),
    "data.crop": Key(
        1.0, "share of the resized picture's side that the model sees", Number(0.01, 1)
    ),
    "data.interpolation": Key(
        "bicubic", "how pictures are resized", Choice(("bicubic", "bilinear", "lanczos"))
    ),
    "data.workers": Key(0, "processes that load pictures; 0: threads of this one", Integer()),
    # Augmentation of training pictures; docs/augmentation.md names the papers.
    "augment.preset": Key(
        "none", "one dial for the augment keys whose default is None", Choice(tuple(PRESETS))
    ),
    **_of_preset(
        "augment.random_resized_crop", "smallest share of a random crop; 0: none", Number(0, 1)
    ),
    "augment.rotate": Key(0.0, "largest rotation, in degrees", Number(0, 180)),
    "augment.shift": Key(0.0, "largest shift, as a share of the picture's side", Number(0, 1)),
    "augment.scale": Key(0.0, "largest change of size: 0.1 is from 1/1.1 to 1.1", Number(0, 1)),
    "augment.shear": Key(0.0, "largest shear, in pixels sideways per pixel down", Number(0, 1)),
    "augment.pad_crop": Key(0, "pixels of padding before a random crop", Integer()),
    **_of_preset("augment.flip", "probability of a left-right flip", Number(0, 1)),
    "augment.flip_vertical": Key(0.0, "probability of an upside-down flip", Number(0, 1)),
    **_of_preset(
        "augment.policy",
        "rand: RandAugment; auto-...: AutoAugment; three: 3-Augment",
        Choice(("none", "rand", "auto-cifar10", "auto-imagenet", "three")),
    ),
    **_of_preset("augment.rand_n", "RandAugment: operations for a picture", Integer(1)),
    **_of_preset("augment.rand_m", "RandAugment: mean level of an operation", Number(0, 10)),
    **_of_preset("augment.rand_std", "RandAugment: deviation of the level", Number(0, 10)),
    **_of_preset(
        "augment.rand_increasing", "RandAugment: whether a higher level changes more", Flag()
    ),
    **_of_preset(
        "augment.color_jitter", "strength of brightness, contrast, saturation", Number(0, 1)
    ),
    **_of_preset("augment.erase", "probability of an erased rectangle", Number(0, 1)),
    **_of_preset("augment.repeats", "differently augmented copies in a batch", Integer(1)),
    **_of_preset("augment.mixup", "alpha of MixUp; 0: none", Number()),
    **_of_preset("augment.cutmix", "alpha of CutMix; 0: none", Number()),
    **_of_preset("augment.mix_probability", "probability that a batch is mixed", Number(0, 1)),
    **_of_preset("augment.mix_switch", "probability of CutMix where both are on", Number(0, 1)),
    # A name of `python -m vit_jax models`; every field of that model is a legal key beside it.
    "model.name": Key("ViT-Ti/16", "which model; its fields are model.FIELD", Text()),
    "precision": Key("float32", "type of the computation", Choice(("float32", "bfloat16"))),
    # What is minimised, and how.
    "objective.loss": Key(
        "softmax",
        "softmax: one class of several; sigmoid: yes or no for each",
        Choice(("softmax", "sigmoid")),
    ),
    "objective.class_weights": Key(
        "none",
        "balanced: classes weigh alike in the loss, however rare",
        Choice(("none", "balanced")),
    ),
    "objective.label_smoothing": Key(
        0.0, "share of the label spread over all classes", Number(0, 0.99)
    ),
    "optimizer.learning_rate": Key(1e-3, "peak learning rate", Number()),
    "optimizer.weight_decay": Key(1e-4, "decoupled decay of matrices and kernels", Number()),
    "optimizer.b1": Key(0.9, "decay of Adam's first moment", Number(0, 0.999999)),
    "optimizer.b2": Key(0.999, "decay of Adam's second moment", Number(0, 0.999999)),
    "optimizer.eps": Key(1e-8, "added to the root of Adam's second moment", Number()),
    "optimizer.clip": Key(1.0, "largest global norm of the gradient; 0: no clipping", Number()),
    "schedule.warmup": Key("5%", "linear rise to the peak learning rate", Span(zero=True)),
    "schedule.end": Key(0.0, "last learning rate as a share of the peak", Number(0, 1)),
    "batch_size": Key(64, "pictures in one step, over all devices and hosts", Integer(1)),
    "duration": Key("10 epochs", "length of the run", Span()),
    # Where it runs.
    "device": Key("auto", "kind of device to run on", Choice(("auto", "cpu", "gpu", "tpu"))),
    "mesh.data": Key(
        -1, "devices that share each batch; -1: all there are", Integer(1, extra=(-1,))
    ),
    # What is kept and shown.
    "resume": Key(
        "auto",
        "auto: go on where the run folder stopped; must: only that; never: start afresh",
        Choice(("auto", "must", "never")),
    ),
    "checkpoint.every": Key("10%", "how often the state is saved", Span()),
    "checkpoint.keep": Key(3, "how many of the last checkpoints are kept", Integer(1)),
    "evaluate.every": Key("10%", "how often the model is evaluated", Span()),
    "evaluate.batch_size": Key(0, "pictures in one evaluation step; 0: batch_size", Integer()),
    "log.every": Key("1%", "how often training metrics are written", Span()),
}

# A run may go on with other values of these: they change neither the data nor the arithmetic.
FREE_KEYS = (
    *("mesh", "log", "checkpoint", "device", "resume"),
    *("data.workers", "data.dir", "data.manual_dir", "data.strict"),
)


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
            value = None if value is None and KEYS[path].preset else legal.convert(value)
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
