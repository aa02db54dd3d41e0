"""Checks of the fields of `Preprocessing`: each error has the value and the valid ones."""

import math
from collections.abc import Collection, Mapping
from numbers import Integral, Real
from typing import Any

from vit_jax.data.images.packing import HEADER
from vit_jax.errors import UserError

_MOST = 2**16 - 1  # rows or columns of a grid


def check(fields: Any, choices: Mapping[str, Collection[str]]) -> None:
    """Raise UserError for the first invalid field of a `Preprocessing`.

    choices: valid values by field.
    """
    size, channels = fields.size, fields.channels
    if not (
        isinstance(size, tuple)
        and len(size) == 2
        and all(isinstance(side, Integral) and side > 0 for side in size)
    ):
        raise UserError(
            f"preprocessing size is {size!r}; it must be (height, width), two whole numbers of"
            " pixels above 0"
        )
    if not isinstance(channels, Integral) or isinstance(channels, bool) or channels < 1:
        raise UserError(
            f"preprocessing channels is {channels!r}; it must be 3 (RGB), 1 (grey) or another whole"
            " number above 0"
        )
    if not isinstance(fields.color_management, bool):
        raise UserError(
            f"preprocessing color_management is {fields.color_management!r}; it must be true or"
            " false"
        )
    for name in ("mean", "std"):
        values = getattr(fields, name)
        if not isinstance(values, tuple) or len(values) not in (1, channels):
            raise UserError(
                f"preprocessing {name} is {values!r}; it must be a tuple of one number or of one"
                f" per channel ({channels})"
            )
        if not all(isinstance(value, Real) and math.isfinite(value) for value in values):
            raise UserError(f"preprocessing {name} is {values!r}; it must hold finite numbers")
    if min(fields.std) <= 0:
        raise UserError(f"preprocessing std is {fields.std!r}; its numbers must be above 0")
    if not (isinstance(fields.crop, Real) and 0 < fields.crop <= 1):
        raise UserError(f"preprocessing crop is {fields.crop!r}; it must be above 0 and at most 1")
    if fields.resize == "pad" and fields.crop != 1:
        raise UserError(
            f"preprocessing crop is {fields.crop!r}, but resize 'pad' keeps the whole image; set"
            " data.crop=1, or data.resize to cover or squash"
        )
    _check_packing(fields)
    frames = fields.frames
    if not isinstance(frames, Integral) or isinstance(frames, bool) or not 0 <= frames <= _MOST:
        raise UserError(
            f"preprocessing frames is {frames!r}; it must be 0 (images) or the number of frames of"
            f" a clip, at most {_MOST:,}"
        )
    if frames and fields.max_tokens:
        raise UserError(
            f"preprocessing has frames = {frames} and max_tokens = {fields.max_tokens}, but clips"
            " have frames of one size; use a model of images, or data.max_tokens=0"
        )
    for name, legal in choices.items():
        if getattr(fields, name) not in legal:
            raise UserError(
                f"preprocessing {name} is {getattr(fields, name)!r}; it must be one of"
                f" {', '.join(legal)}"
            )


def _check_packing(fields: Any) -> None:
    """Raise UserError for a budget of tokens and a patch that no packed image can have."""
    budget, patch = fields.max_tokens, fields.patch_size
    if not isinstance(budget, Integral) or isinstance(budget, bool) or not 0 <= budget <= _MOST:
        raise UserError(
            f"preprocessing max_tokens is {budget!r}; it must be 0 (images of one size) or a budget"
            f" of 1 to {_MOST:,} patches"
        )
    if not (
        isinstance(patch, tuple)
        and len(patch) == 2
        and all(isinstance(side, Integral) and side > 0 for side in patch)
    ):
        raise UserError(
            f"preprocessing patch_size is {patch!r}; it must be (height, width), two whole numbers"
            " of pixels above 0"
        )
    if not budget:
        return
    if fields.crop != 1:
        raise UserError(
            f"preprocessing crop is {fields.crop!r}, but max_tokens keeps the whole image; set"
            " data.crop=1, or data.max_tokens=0"
        )
    if math.prod(patch) * fields.channels < HEADER:
        raise UserError(
            f"patches of {patch[0]} x {patch[1]} pixels and {fields.channels} channels are too"
            f" small for data.max_tokens, which needs {HEADER} numbers in a patch; use larger"
            " patches"
        )
