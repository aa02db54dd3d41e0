"""`preprocessor_config.json` of Hugging Face, and our preprocessing.

Their processors resize the shorter side and cut out the centre (DINOv2, CLIP), or squeeze the whole
picture into a fixed size (ViT, DeiT).
"""

import math
from collections.abc import Mapping
from typing import Any

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError

_FILE = "preprocessor_config.json"
# Pillow's numbers of interpolations.
_INTERPOLATIONS = {1: "lanczos", 2: "bilinear", 3: "bicubic"}


def read(processor: Mapping[str, Any], patch: tuple[int, int]) -> dict[str, Any]:
    """Fields of `Preprocessing` that a processor's configuration names.

    Args:
        processor: the content of the file.
        patch: (height, width) of the model's patches; a size that they do not fill is left out.

    Raises:
        UserError: a value is of another kind than it should be.
    """
    fields = {}
    if processor.get("do_normalize", True):
        scale = _largest_pixel(processor)
        for ours, theirs in (("mean", "image_mean"), ("std", "image_std")):
            if processor.get(theirs) is not None:
                fields[ours] = _numbers(processor, theirs, scale)
    else:
        fields |= {"mean": (0.0,), "std": (1.0,)}
    if processor.get("resample") is not None:
        fields["interpolation"] = _interpolation(processor["resample"])
    sizes = _sizes(processor)
    if sizes is not None:
        resized, size = sizes
        fields["crop"] = _crop(size, resized)
        squeezes = processor.get("do_resize", True) and not _keeps_ratio(processor.get("size"))
        fields["resize"] = "squash" if squeezes else "cover"
        if size[0] % patch[0] == 0 and size[1] % patch[1] == 0:
            fields["size"] = size
    return fields


def write(preprocessing: Preprocessing) -> dict[str, Any]:
    """The content of the file for a preprocessing.

    Transformers have no way to cover an oblong size, and squeeze the picture into it.

    Raises:
        UserError: images are padded, which these processors cannot do.
    """
    if preprocessing.resize == "pad":
        raise UserError(
            f"{_FILE} has no way to fit a whole image in and pad it (data.resize = 'pad'); write "
            "timm's form, or train with data.resize=cover or squash"
        )
    height, width = preprocessing.size
    covered = [math.floor(side / preprocessing.crop) for side in preprocessing.size]
    as_number = {name: number for number, name in _INTERPOLATIONS.items()}
    covers = preprocessing.resize == "cover" and height == width
    channels = preprocessing.channels
    return {
        "image_processor_type": "BitImageProcessor",
        "do_convert_rgb": channels == 3,
        "do_resize": True,
        "size": {"shortest_edge": covered[0]}
        if covers
        else {"height": covered[0], "width": covered[1]},
        "resample": as_number[preprocessing.interpolation],
        "do_center_crop": True,
        "crop_size": {"height": height, "width": width},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean) * (channels // len(preprocessing.mean)),
        "image_std": list(preprocessing.std) * (channels // len(preprocessing.std)),
    }


def _largest_pixel(processor: Mapping[str, Any]) -> float:
    """What 255 has become where mean and std come in; 1 with the usual factor."""
    if not processor.get("do_rescale", True):
        return 255.0
    factor = processor.get("rescale_factor", 1 / 255)
    if type(factor) not in (int, float) or not 0 < factor < math.inf:
        raise UserError(f"{_FILE}: rescale_factor = {factor!r} should be a number above 0")
    return 255 * factor


def _sizes(processor: Mapping[str, Any]) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """(height, width) that a picture is resized to at least, and what is cut out of it."""
    resized = _size(processor, "size") if processor.get("do_resize", True) else None
    cut = _size(processor, "crop_size") if processor.get("do_center_crop") else None
    if resized is None and cut is None:
        return None
    return resized or cut, cut or resized


def _keeps_ratio(size: Any) -> bool:
    """Whether only the shorter side is named."""
    return size is None or (isinstance(size, Mapping) and size.get("shortest_edge") is not None)


def _size(processor: Mapping[str, Any], name: str) -> tuple[int, int] | None:
    value = processor.get(name)
    if value is None:
        return None
    sides = value
    if isinstance(value, Mapping):
        edge = value.get("shortest_edge")
        sides = [edge, edge] if edge is not None else [value.get("height"), value.get("width")]
    elif type(value) is int:
        sides = [value, value]
    legal = isinstance(sides, list) and len(sides) == 2
    if not legal or any(type(side) is not int or side < 1 for side in sides):
        raise UserError(
            f"{_FILE}: {name} = {value!r} should be a number of pixels, or have height and width, "
            "or shortest_edge"
        )
    return tuple(sides)


def _crop(size: tuple[int, int], resized: tuple[int, int]) -> float:
    """The fraction with which `Preprocessing` resizes to exactly that number of pixels."""
    side, whole = min(zip(size, resized, strict=True), key=lambda pair: pair[0] / pair[1])
    crop = min(side / whole, 1.0)
    return math.nextafter(crop, 0) if math.floor(side / crop) < whole else crop


def _interpolation(resample: Any) -> str:
    name = _INTERPOLATIONS.get(resample, resample) if isinstance(resample, int | str) else None
    if name not in _INTERPOLATIONS.values():
        legal = ", ".join(f"{number} ({name})" for number, name in _INTERPOLATIONS.items())
        raise UserError(f"{_FILE}: resample = {resample!r} is no interpolation here; it is {legal}")
    return name


def _numbers(processor: Mapping[str, Any], name: str, scale: float) -> tuple[float, ...]:
    value = processor[name]
    numbers = value if isinstance(value, list) else [value]
    if not numbers or any(type(number) not in (int, float) for number in numbers):
        raise UserError(f"{_FILE}: {name} = {value!r} should be a list of numbers")
    return tuple(float(number) if scale == 1 else number / scale for number in numbers)
