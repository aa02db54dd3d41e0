"""Checkpoint formats: names, shapes, and the facts that a file does not contain itself.

A file is recognised by the names of its tensors and by the `config.json` beside it, never by its
own name. What neither tells is asked of the person: torch keeps the heads of attention in one
matrix, so their number is not in the tensors; and some origins share every name and shape and
differ in preprocessing, GELU or how they resize positions.
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
HALF = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}  # pixels from -1 to 1
# In a row. The deepest published networks have some 60; building thousands would take for ever.
MOST_BLOCKS = 256
MOST_PIXELS = 8192  # of a side; windows and their masks are laid out for all of it


@dataclass(frozen=True)
class Hints:
    """User's hints about a file for facts that it does not contain; None: no hint.

    origin: whose weights, such as "deit". heads: of attention. image_size: (height, width) in
    pixels that the position table was made for.
    """

    origin: str | None = None
    heads: int | None = None
    image_size: tuple[int, int] | None = None


@dataclass(frozen=True)
class Origin:
    """The facts that come with weights of one origin.

    fields: of the model, such as its GELU and the epsilon of its norms.
    preprocessing: fields of `Preprocessing`, but for size and channels.
    source: where these facts stand.
    """

    fields: Mapping[str, Any]
    preprocessing: Mapping[str, Any]
    source: str


@dataclass(frozen=True)
class ModelSpec:
    """Description of a model that can be built from a file.

    fields: of the model. preprocessing: as of an `Origin`, and the size of the images where it is
    not the one that the model is built for. class_names: None where nobody says.
    origin: its name. notes: what the person should know of the file, one sentence each.
    """

    fields: dict[str, Any]
    preprocessing: dict[str, Any]
    origin: str
    class_names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()


def _as_it_is(tensors: Any, fields: Any = None) -> Any:
    return tensors


@dataclass(frozen=True)
class CheckpointFormat:
    """One way to name and shape the weights of an architecture.

    name: of the library or its authors; there may be several architectures of one name.
    signature: regular expressions; a file is of this ecosystem if each matches some name.
    rows: the table, see `tables`.
    describe: the tensors, the `config.json` beside them if any, and what the person said; raises
        UserError where that is not enough.
    ignored: regular expression of names that are no part of the model, and why.
    normalize_names: removes what differs between files of one ecosystem, such as a prefix of all
        names.
    finish: from what `rows` have written and the model's fields to what the ecosystem reads.
    config: our model's fields, preprocessing and class names to the `config.json` that the
        ecosystem reads; None where nothing is written for it.
    preprocessor: our preprocessing to its `preprocessor_config.json`; None where it has none.
    architecture: the registered name of the class, of which `describe` gives the fields.
    others: regular expression of architectures in a `config.json` of timm that have the same names
        and compute something else; empty where `describe` looks at that itself, or there are none.
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
    architecture: str = "ViT"
    others: str = ""

    def recognises(self, tensors: Tensors) -> bool:
        """Return whether the names are those of this format."""
        return all(any(re.fullmatch(mark, name) for name in tensors) for mark in self.signature)

    def is_ignored(self, name: str) -> bool:
        """Return whether a tensor is known to be no part of the model."""
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)


# ------------------------------------------------------------------------------- for `describe`


def axes_of(tensors: Tensors, name: str, axes: str) -> tuple[int, ...]:
    """The shape of a tensor that must have these axes, such as "out, in, height, width".

    Raises UserError where there is no such tensor, or it has others.
    """
    if name not in tensors:
        raise UserError(f"the file holds no {name}: it is not whole")
    shape = tensors[name].shape
    if len(shape) != len(axes.split(", ")) or 0 in shape:
        raise UserError(f"{name} has shape {shape} and should have the axes ({axes})")
    return shape


def most_common_side(tensors: Tensors, pattern: str, axis: int) -> int:
    """The side along an axis that most tensors of such names have.

    What all blocks share is asked of all of them, so that one of another shape is blamed itself.

    Raises UserError where none has such an axis.
    """
    shapes = (x.shape for name, x in tensors.items() if re.fullmatch(pattern, name))
    sides = Counter(shape[axis] for shape in shapes if len(shape) > axis)
    if not sides:
        raise UserError(f"no tensor called like {pattern} has {axis + 1} axes: it is not whole")
    return sides.most_common(1)[0][0]


def configured_section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object inside the configuration; an empty one where it has none.

    Raises UserError for anything else.
    """
    section = config.get(name)
    if section is not None and not isinstance(section, Mapping):
        raise UserError(f"config.json: {name} = {str(section)[:80]!r} should be an object")
    return section or {}


def configured_number(config: Mapping[str, Any], name: str) -> int | None:
    """A whole number of the configuration; None where it has none.

    Raises UserError for anything else, and for 0 and less.
    """
    value = config.get(name)
    if value is not None and (type(value) is not int or value < 1):
        raise UserError(f"config.json: {name} = {value!r} should be a whole number above 0")
    return value


def configured_text(config: Mapping[str, Any], name: str) -> str | None:
    """A text of the configuration; None where it has none. Raises UserError for anything else."""
    value = config.get(name)
    if value is not None and not isinstance(value, str):
        raise UserError(f"config.json: {name} = {str(value)[:80]} should be a text in quotes")
    return value


def configured_numbers(config: Mapping[str, Any], name: str) -> tuple[float, ...] | None:
    """A list of numbers of the configuration, or one number; None where it has none.

    Raises UserError for anything else.
    """
    value = config.get(name)
    if value is None:
        return None
    numbers = value if isinstance(value, list | tuple) else [value]
    if not numbers or any(type(number) not in (int, float) for number in numbers):
        raise UserError(f"config.json: {name} = {str(value)[:80]!r} should be a list of numbers")
    return tuple(numbers)


def configured_size(config: Mapping[str, Any], name: str) -> tuple[int, int] | None:
    """(height, width) of the configuration, where one number stands for both; None: it has none.

    Raises UserError for anything else.
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
            f"config.json: {name} = {value!r}; sides of at most {MOST_PIXELS} pixels are read, no "
            "vision model has more"
        )
    return tuple(sides)


def count_blocks(tensors: Tensors, pattern: str) -> int:
    """The number of blocks: `pattern` is a regular expression whose group is a block's number.

    Raises UserError where numbers are missing, as in a file of a part of a model, and where there
    are more than any model has: building it would take for ever.
    """
    matches = (re.fullmatch(pattern, name) for name in tensors)
    numbers = {match[1] for match in matches if match}
    # Counted, not made into a range: a name may hold a number of any length.
    gap = next((i for i in range(len(numbers)) if str(i) not in numbers), None)
    if gap is not None:
        last = max(numbers, key=lambda number: (len(number), number))
        raise UserError(
            f"the file holds blocks up to number {last[:20]} and not number {gap}: it is a part of "
            "a model; give the index of its parts, or the folder where all of them are"
        )
    if len(numbers) > MOST_BLOCKS:
        raise UserError(
            f"the file holds {len(numbers)} blocks in a row; at most {MOST_BLOCKS} are read, more "
            "than any vision model has"
        )
    return len(numbers)


def position_grid(
    rows: int, prefix_choices: tuple[int, ...], patch: tuple[int, int], hints: Hints
) -> tuple[int, tuple[int, int]]:
    """Prefix rows of a position table, and the image size (height, width) it is made for.

    A size that the person or the configuration gives decides; without one the grid is a square.

    Args:
        rows: of the table. prefix_choices: how many rows of them may belong to prefix tokens.

    Raises:
        UserError: no choice leaves the grid.
    """
    if hints.image_size is not None:
        height, width = (side // p for side, p in zip(hints.image_size, patch, strict=True))
        for prefix in prefix_choices:
            if rows == prefix + height * width:
                return prefix, (height * patch[0], width * patch[1])
        raise UserError(
            f"an image of {hints.image_size[0]} x {hints.image_size[1]} pixels has {height} x "
            f"{width} patches of {patch[0]} x {patch[1]}, and the position table has {rows} rows "
            f"(with {' or '.join(map(str, prefix_choices))} for other tokens); give the size that "
            "the table was made for"
        )
    for prefix in prefix_choices:
        side = math.isqrt(max(rows - prefix, 0))
        if side and side * side == rows - prefix:
            return prefix, (side * patch[0], side * patch[1])
    raise UserError(
        f"the position table has {rows} rows, which are no square of patches; say which image "
        "size it was made for: --file-size=HEIGHTxWIDTH"
    )


def need_heads(hints: Hints, configured: int | None, width: int) -> int:
    """The number of heads, as configured or as the person says.

    Raises UserError where nobody says it or it does not divide the width.
    """
    heads = hints.heads or configured
    if heads is None:
        usual = f"; published models of width {width} have {width // 64}" if width % 64 == 0 else ""
        raise UserError(
            f"neither the file nor a config.json beside it says how many heads its attention of "
            f"width {width} has; say it with --heads=NUMBER{usual}"
        )
    if hints.heads and configured and hints.heads != configured:
        raise UserError(
            f"--heads={hints.heads}, and the config.json beside the file says {configured}; leave "
            "--heads out"
        )
    if width % heads:
        raise UserError(f"{heads} heads do not divide the width {width}; give another --heads")
    return heads


def choose_origin(
    hints: Hints,
    candidates: Mapping[str, Origin],
    found: str | None = None,
    look_alike: str | None = None,
) -> tuple[str, Origin]:
    """The origin that is found in the file or its configuration, or that the person names.

    look_alike: a model that cannot be read and has the same tensors; the person has to say that it
        is not that one.

    Raises UserError where several fit, with their names and what differs between them.
    """
    name = hints.origin or found
    if name is None and len(candidates) == 1 and look_alike is None:
        [name] = candidates
    legal = " or ".join(f"--origin={candidate}" for candidate in candidates)
    if name is None and look_alike:
        raise UserError(
            f"the tensors fit {look_alike}, which cannot be read, as well as what can; if it is "
            f"the latter, say which: {legal}"
        )
    if name is None:
        raise UserError(
            "the tensors fit several origins, which differ in preprocessing and in how positions "
            f"are resized, some in the activation; say which it is: {legal}"
        )
    if name not in candidates:
        raise UserError(
            f"--origin={name} does not fit this file; it can be {' or '.join(candidates)}"
        )
    return name, candidates[name]


def side_or_pair(sides: tuple[int, int]) -> int | tuple[int, int]:
    """One number where height and width are equal, as model fields are written."""
    return sides[0] if sides[0] == sides[1] else sides


def all_zero(array: np.ndarray) -> bool:
    """Return whether an array holds only zeros, as the heads of some published files do."""
    return not np.any(array)


# --------------------------------------------------------------------------------- for `config`


def need(library: str, fields: Mapping[str, Any], needed: Mapping[str, Any], of: str = "") -> None:
    """Raise UserError for a field in which a library's models are all alike, and ours is not.

    of: of what it is a field, such as " of a Swin".
    """
    for name, value in needed.items():
        if fields[name] != value:
            raise UserError(
                f"{library} cannot say {name} = {fields[name]!r}{of}: a model like this has "
                f"{value!r} there and would compute something else; keep the run folder"
            )
