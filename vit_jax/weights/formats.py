"""Checkpoint formats: names, shapes, and the facts that a file does not contain itself.

A file is recognised by the names of its tensors and by the `config.json` beside it, never by its
own name. An error asks for the remaining facts: torch stores the heads of attention in one matrix,
so their number is not in the tensors; and some origins share every name and shape but differ in
preprocessing, GELU or the resizing of positions.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vit_jax.errors import UserError
from vit_jax.weights.mapping import Row, Tensors

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
CLIP = {
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "std": (0.26862954, 0.26130258, 0.27577711),
}
HALF = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}  # pixels from -1 to 1
# Consecutive blocks. The deepest published networks have about 60; thousands take too long.
MOST_BLOCKS = 256
MOST_PIXELS = 8192  # of a side; windows and their masks cover all of it


@dataclass(frozen=True)
class Hints:
    """User's hints about a file for facts that it does not contain; None: no hint.

    origin: origin of the weights, such as "deit". heads: number of attention heads. image_size:
    (height, width) in pixels of the position table. text_heads: number of attention heads of a
    text tower.
    """

    origin: str | None = None
    heads: int | None = None
    image_size: tuple[int, int] | None = None
    text_heads: int | None = None


@dataclass(frozen=True)
class Origin:
    """Facts about the weights of one origin.

    fields: model fields, such as its GELU and the epsilon of its norms.
    preprocessing: fields of `Preprocessing`, except size and channels.
    source: reference for these facts.
    """

    fields: Mapping[str, Any]
    preprocessing: Mapping[str, Any]
    source: str


@dataclass(frozen=True)
class ModelSpec:
    """Description of a model that can be built from a file.

    fields: model fields. preprocessing: as in `Origin`, with the image size if it differs from that
    of the model. class_names: None if unknown. origin: its name. notes: sentences for the user
    about the file. architecture: registered name of the class, if not that of the format.
    """

    fields: dict[str, Any]
    preprocessing: dict[str, Any]
    origin: str
    class_names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    architecture: str | None = None


def _always(fields: Mapping[str, Any]) -> bool:
    return True


def _as_it_is(tensors: Any, fields: Any = None) -> Any:
    return tensors


@dataclass(frozen=True)
class CheckpointFormat:
    """Names and shapes of the weights of one architecture in one library.

    name: name of the library or its authors; several architectures may have one name.
    signature: regular expressions; a file has this format if each matches some name.
    absent: regular expressions; and if none of these does.
    rows: the table, see `mapping`.
    describe: from tensors, `config.json` (or None) and hints to a spec; raises UserError if these
        are not sufficient.
    ignored: regular expressions of names that are no part of the model, with reasons.
    normalize_names: removes differences between files of one format, such as a prefix of all
        names.
    finish: from the tensors written by `rows` and the model's fields to the library's tensors.
    config: from our model's fields, preprocessing and class names to the library's `config.json`;
        an empty one is not written; None if nothing is written for the library.
    preprocessor: from our preprocessing to its `preprocessor_config.json`; None without one.
    writes: whether it has a model of these fields, where several formats of one library and class
        have a `config`; the first one that says so is used.
    has_fixed_table: whether the library computes the table of positions "sincos2d"; otherwise it is
        written as a learned one.
    model_types: those of a `config.json` of transformers that this format reads.
    architecture: the registered name of the class whose fields `describe` returns.
    others: regular expression of architectures in a `config.json` of timm with the same names but
        another computation; empty if `describe` checks that itself, or there are none.
    of_clips: whether its models have convolutions with a third axis, over frames.
    """

    name: str
    signature: tuple[str, ...]
    rows: tuple[Row, ...]
    describe: Callable[[Tensors, Mapping[str, Any] | None, Hints], ModelSpec]
    ignored: Mapping[str, str] = field(default_factory=dict)
    normalize_names: Callable[[Tensors], Tensors] = _as_it_is
    finish: Callable[[dict[str, np.ndarray], Mapping[str, Any]], dict[str, np.ndarray]] = _as_it_is
    config: Callable[..., dict[str, Any]] | None = None
    preprocessor: Callable[..., dict[str, Any]] | None = None
    writes: Callable[[Mapping[str, Any]], bool] = _always
    has_fixed_table: bool = False
    model_types: tuple[str, ...] = ()
    architecture: str = "ViT"
    others: str = ""
    absent: tuple[str, ...] = ()
    of_clips: bool = False

    def recognises(self, tensors: Tensors) -> bool:
        """Return whether the names are those of this format."""
        present = (any(re.fullmatch(mark, name) for name in tensors) for mark in self.signature)
        return all(present) and not any(re.fullmatch(x, n) for x in self.absent for n in tensors)

    def has(self, name: str) -> bool:
        """Return whether a tensor of this name is a part of its models, or ignored."""
        return self.is_ignored(name) or any(row.has(name) for row in self.rows)

    def is_ignored(self, name: str) -> bool:
        """Return whether a tensor is known to be no part of the model."""
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)


# ------------------------------------------------------------------------------- for `describe`


def axes_of(tensors: Tensors, name: str, axes: str) -> tuple[int, ...]:
    """Return the shape of a tensor that must have these axes, such as "out, in, height, width".

    Raises UserError if there is no such tensor, or it has other axes.
    """
    if name not in tensors:
        raise UserError(f"the file has no {name}: it is incomplete")
    shape = tensors[name].shape
    if len(shape) != len(axes.split(", ")) or 0 in shape:
        raise UserError(f"{name} has shape {shape} and should have the axes ({axes})")
    return shape


def most_common_side(tensors: Tensors, pattern: str, axis: int) -> int:
    """Return the most common size of an axis of tensors whose names match a pattern.

    Sizes shared by all blocks are read from all of them, so that errors name the deviating block.

    Raises UserError if none has such an axis.
    """
    shapes = (x.shape for name, x in tensors.items() if re.fullmatch(pattern, name))
    sides = Counter(shape[axis] for shape in shapes if len(shape) > axis)
    if not sides:
        raise UserError(f"no tensor like {pattern} has {axis + 1} axes: the file is incomplete")
    return sides.most_common(1)[0][0]


def configured_section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an object inside the configuration; an empty one without it.

    Raises UserError for other types.
    """
    section = config.get(name)
    if section is not None and not isinstance(section, Mapping):
        raise UserError(f"config.json: {name} = {str(section)[:80]!r} should be an object")
    return section or {}


def configured_number(config: Mapping[str, Any], name: str) -> int | None:
    """Return a whole number of the configuration; None without it.

    Raises UserError for other types, and for 0 and less.
    """
    value = config.get(name)
    if value is not None and (type(value) is not int or value < 1):
        raise UserError(f"config.json: {name} = {value!r} should be a whole number above 0")
    return value


def configured_text(config: Mapping[str, Any], name: str) -> str | None:
    """Return a string of the configuration; None without it. Raises UserError for other types."""
    value = config.get(name)
    if value is not None and not isinstance(value, str):
        raise UserError(f"config.json: {name} = {str(value)[:80]} should be a string in quotes")
    return value


def configured_numbers(config: Mapping[str, Any], name: str) -> tuple[float, ...] | None:
    """Return a list of numbers of the configuration, or one number; None without it.

    Raises UserError for other types.
    """
    value = config.get(name)
    if value is None:
        return None
    numbers = value if isinstance(value, list | tuple) else [value]
    if not numbers or any(type(number) not in (int, float) for number in numbers):
        raise UserError(f"config.json: {name} = {str(value)[:80]!r} should be a list of numbers")
    return tuple(numbers)


def configured_size(config: Mapping[str, Any], name: str) -> tuple[int, int] | None:
    """Return (height, width) of the configuration, where one number means both; None without it.

    Raises UserError for other types.
    """
    value = config.get(name)
    if value is None:
        return None
    sides = [value, value] if type(value) is int else value
    if not isinstance(sides, list | tuple) or len(sides) != 2:
        sides = [0]
    if any(type(side) is not int or side < 1 for side in sides):
        raise UserError(
            f"config.json: {name} = {value!r} should be a number of pixels, or [height, width]"
        )
    if max(sides) > MOST_PIXELS:
        raise UserError(
            f"config.json: {name} = {value!r} is larger than any vision model; sides of at most "
            f"{MOST_PIXELS} pixels are read"
        )
    return tuple(sides)


def count_blocks(tensors: Tensors, pattern: str) -> int:
    """Count blocks; `pattern` is a regular expression whose group is a block's number.

    Raises UserError if numbers are missing, as in a shard of a model, and for more blocks than any
    model has: building it would take too long.
    """
    matches = (re.fullmatch(pattern, name) for name in tensors)
    numbers = {match[1] for match in matches if match}
    # Counted, not made into a range: a name may have a number of any length.
    gap = next((i for i in range(len(numbers)) if str(i) not in numbers), None)
    if gap is not None:
        last = max(numbers, key=lambda number: (len(number), number))
        raise UserError(
            f"the file has blocks up to number {last[:20]} but not number {gap}: it is a part of "
            "a model; use the index of its shards, or the folder with all of them"
        )
    if len(numbers) > MOST_BLOCKS:
        raise UserError(
            f"the file has {len(numbers)} consecutive blocks, more than any vision model; at most "
            f"{MOST_BLOCKS} are read"
        )
    return len(numbers)


def position_grid(
    rows: int, prefix_choices: tuple[int, ...], patch: tuple[int, int], hints: Hints
) -> tuple[int, tuple[int, int]]:
    """Return the number of prefix rows of a position table, and its image size (height, width).

    The size is that of the hints or the configuration; without one the grid is a square.

    Args:
        rows: number of rows. prefix_choices: possible numbers of rows for prefix tokens.

    Raises:
        UserError: no choice matches the grid.
    """
    if hints.image_size is not None:
        height, width = (side // p for side, p in zip(hints.image_size, patch, strict=True))
        for prefix in prefix_choices:
            if rows == prefix + height * width:
                return prefix, (height * patch[0], width * patch[1])
        raise UserError(
            f"an image of {hints.image_size[0]} x {hints.image_size[1]} pixels has {height} x "
            f"{width} patches of {patch[0]} x {patch[1]}, but the position table has {rows} rows "
            f"(with {' or '.join(map(str, prefix_choices))} for other tokens); use the image size "
            "of the table"
        )
    for prefix in prefix_choices:
        side = math.isqrt(max(rows - prefix, 0))
        if side and side * side == rows - prefix:
            return prefix, (side * patch[0], side * patch[1])
    raise UserError(
        f"the position table has {rows} rows, which are not a square of patches; set its image "
        "size with --file-size=HEIGHTxWIDTH"
    )


def need_heads(hints: Hints, configured: int | None, width: int) -> int:
    """Return the number of heads from the configuration or the hints.

    Raises UserError if it is unknown or does not divide the width.
    """
    heads = hints.heads or configured
    if heads is None:
        usual = f"; published models of width {width} have {width // 64}" if width % 64 == 0 else ""
        raise UserError(
            f"neither the file nor a config.json beside it has the number of attention heads for "
            f"width {width}; use --heads=NUMBER{usual}"
        )
    if hints.heads and configured and hints.heads != configured:
        raise UserError(
            f"--heads={hints.heads} contradicts the config.json beside the file, {configured}; "
            "remove --heads"
        )
    if width % heads:
        raise UserError(f"{heads} heads do not divide the width {width}; use another --heads")
    return heads


def choose_origin(
    hints: Hints,
    candidates: Mapping[str, Origin],
    found: str | None = None,
    look_alike: str | None = None,
) -> tuple[str, Origin]:
    """Return the origin found in the file or its configuration, or named in the hints.

    look_alike: an unsupported model with the same tensors; the hints have to exclude it.

    Raises UserError if several fit, with their names and differences.
    """
    name = hints.origin or found
    if name is None and len(candidates) == 1 and look_alike is None:
        [name] = candidates
    allowed = " or ".join(f"--origin={candidate}" for candidate in candidates)
    if name is None and look_alike:
        raise UserError(
            f"the tensors fit {look_alike} and is not supported, and they fit supported models; "
            f"if the file is of one of those, use {allowed}"
        )
    if name is None:
        raise UserError(
            "the tensors fit several origins, which differ in preprocessing and in the resizing of "
            f"positions, some in the activation; use {allowed}"
        )
    if name not in candidates:
        raise UserError(f"--origin={name} does not fit this file; use {allowed}")
    return name, candidates[name]


def outputs_of(tensors: Tensors, name: str) -> int:
    """Return the output width of a linear layer; 0 if there is no such layer."""
    return axes_of(tensors, name, "out, in")[0] if name in tensors else 0


def side_or_pair(sides: tuple[int, int]) -> int | tuple[int, int]:
    """Return one number if height and width are equal, as in model fields."""
    return sides[0] if sides[0] == sides[1] else sides


def all_zero(array: np.ndarray) -> bool:
    """Return whether an array holds only zeros, as the heads of some published files do."""
    return not np.any(array)


# --------------------------------------------------------------------------------- for `config`


def need(library: str, fields: Mapping[str, Any], needed: Mapping[str, Any], of: str = "") -> None:
    """Raise UserError for a field in which our model differs from all models of a library.

    of: the owner of the field, such as " of a Swin".
    """
    for name, value in needed.items():
        if fields[name] != value:
            raise UserError(
                f"{library} does not support {name} = {fields[name]!r}{of}, only {value!r}; keep "
                "the run folder"
            )
