"""Conversion between Hugging Face's `preprocessor_config.json` and our preprocessing.

Their processors resize the shorter side and crop the centre (DINOv2, CLIP), or squash the whole
image to a fixed size (ViT, DeiT). Missing entries are defaults of the processor's class, which is
in the file, or follows from the model's `config.json`. All processors round the offsets of the
central crop down.

Source: transformers 5.24, `models/*/image_processing_pil_*.py`.
"""

import math
from collections.abc import Mapping
from typing import Any

from vit_jax.data import Preprocessing
from vit_jax.data.images.preprocess import crop_of
from vit_jax.errors import UserError

_FILE = "preprocessor_config.json"
# Pillow's numbers of interpolations.
_INTERPOLATIONS = {1: "lanczos", 2: "bilinear", 3: "bicubic"}

_HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
_CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
_SQUARE = {"height": 224, "width": 224}
_SHORTEST = {"shortest_edge": 224}
_CENTRE = {"do_center_crop": True, "crop_size": _SQUARE}
_NAFLEX = "Siglip2"  # any aspect ratio, within a budget of patches
# By the name of a processor, without its suffix for a library.
DEFAULTS = {
    "ViT": {**_HALF, "resample": 2, "size": _SQUARE},
    "DeiT": {**_HALF, "resample": 3, "size": {"height": 256, "width": 256}, **_CENTRE},
    "Bit": {**_CLIP, "resample": 3, "size": _SHORTEST, **_CENTRE},
    "CLIP": {**_CLIP, "resample": 3, "size": _SHORTEST, **_CENTRE},
    "ConvNext": {**_HALF, "resample": 3, "size": {"shortest_edge": 384}, "crop_pct": 224 / 256},
    "DINOv3ViT": {
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
        "resample": 2,
        "size": _SQUARE,
    },
    "Pvt": {
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
        "resample": 3,
        "size": _SQUARE,
    },
    "Beit": {**_HALF, "resample": 3, "size": _SQUARE},
    "Segformer": {
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
        "resample": 2,
        "size": {"height": 512, "width": 512},
    },
    "VideoMAE": {
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
        "resample": 2,
        "size": _SHORTEST,
        **_CENTRE,
    },
    "VJEPA2": {
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
        "resample": 2,
        "size": {"shortest_edge": 292},
        "do_center_crop": True,
        "crop_size": {"height": 256, "width": 256},
    },
    "DPT": {**_HALF, "resample": 3, "size": {"height": 384, "width": 384}},
    "Siglip": {**_HALF, "resample": 3, "size": _SQUARE},
    _NAFLEX: {**_HALF, "resample": 2, "patch_size": 16, "max_num_patches": 256},
}
# For these processors one number is the shorter side, for the others a square.
_NOT_SQUARE = ("Bit", "CLIP", "ConvNext", "Siglip", "VideoMAE", "VJEPA2")
OF_MODELS = {
    "vit": "ViT",
    "vit_mae": "ViT",
    "vit_msn": "ViT",
    "beit": "Beit",
    "ijepa": "ViT",
    "swin": "ViT",
    "deit": "DeiT",
    "dinov2": "Bit",
    "dinov2_with_registers": "Bit",
    "convnext": "ConvNext",
    "convnextv2": "ConvNext",
    "dinov3_convnext": "DINOv3ViT",
    "dinov3_vit": "DINOv3ViT",
    "resnet": "ConvNext",
    "pvt": "Pvt",
    "pvt_v2": "Pvt",
    "segformer": "Segformer",
    "timesformer": "VideoMAE",
    "vjepa2": "VJEPA2",
    "dpt": "DPT",
    "depth_anything": "DPT",
    **dict.fromkeys(("clip", "clip_vision_model"), "CLIP"),
    **dict.fromkeys(("siglip", "siglip_vision_model"), "Siglip"),
    "aimv2": "CLIP",
    "aimv2_vision_model": "CLIP",
}
_SQUEEZED_FROM = 384  # pixels; below it ConvNext's processor keeps the aspect ratio and crops


def read(
    processor: Mapping[str, Any], patch: tuple[int, int], model_type: str | None = None
) -> dict[str, Any]:
    """Return the fields of `Preprocessing` for a processor's configuration.

    Args:
        processor: the content of the file; if empty, the result is empty.
        patch: (height, width) of the model's patches; a size that is not a multiple is skipped.
        model_type: of the model's `config.json`, for files without the name of their class.

    Raises:
        UserError: a value has the wrong type, or `Preprocessing` does not support it.
    """
    if not processor:
        return {}
    kind = _kind(processor, model_type)
    given = {name: value for name, value in processor.items() if value is not None}
    processor = {**DEFAULTS.get(kind, {}), **given}
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
    if kind == _NAFLEX:
        return fields | _budget(processor)
    sizes = _sizes(processor, kind)
    if sizes is None:
        return fields
    resized, size, keeps_ratio = sizes
    if any(side > whole for side, whole in zip(size, resized, strict=True)):
        raise UserError(
            f"{_FILE}: crop_size = {processor['crop_size']!r} is larger than the resized image, "
            f"{processor['size']!r}, which is not supported yet; reduce crop_size"
        )
    fields |= {"crop": crop_of(size, resized), "resize": "cover" if keeps_ratio else "squash"}
    if keeps_ratio or resized != size:
        fields["crop_rounding"] = "down"
    if any(math.floor(s / fields["crop"]) != r for s, r in zip(size, resized, strict=True)):
        raise UserError(
            f"{_FILE}: size = {processor['size']!r} and crop_size = {processor['crop_size']!r} "
            "have different aspect ratios, which is not supported yet; use one aspect ratio"
        )
    if size[0] % patch[0] == 0 and size[1] % patch[1] == 0:
        fields["size"] = size
    return fields


def write(preprocessing: Preprocessing) -> dict[str, Any]:
    """Return the content of the file for a preprocessing.

    transformers cannot cover an oblong size, and squashes the image instead: see
    `squeezes_instead`.

    Raises:
        UserError: images are padded, which these processors do not support.
    """
    if preprocessing.max_tokens:
        return _of_budget(preprocessing)
    if preprocessing.resize == "pad":
        raise UserError(
            f"{_FILE} does not support data.resize = 'pad'; use "
            "timm's format, or train with data.resize=cover or squash"
        )
    height, width = preprocessing.size
    covered = [math.floor(side / preprocessing.crop) for side in preprocessing.size]
    covers = preprocessing.resize == "cover" and height == width
    return {
        "image_processor_type": "BitImageProcessor",
        "size": {"shortest_edge": covered[0]}
        if covers
        else {"height": covered[0], "width": covered[1]},
        "do_center_crop": True,
        "crop_size": {"height": height, "width": width},
        **_of_pixels(preprocessing),
    }


def _of_budget(preprocessing: Preprocessing) -> dict[str, Any]:
    """Return the file's content for packed images."""
    height, width = preprocessing.patch_size
    if height != width:
        raise UserError(
            f"{_FILE} supports only square patches, and these are {height} x {width} pixels; keep "
            "the run folder"
        )
    return {
        "image_processor_type": "Siglip2ImageProcessor",
        "patch_size": height,
        "max_num_patches": preprocessing.max_tokens,
        **_of_pixels(preprocessing),
    }


def _of_pixels(preprocessing: Preprocessing) -> dict[str, Any]:
    """Return the entries on interpolation and normalisation."""
    as_number = {name: number for number, name in _INTERPOLATIONS.items()}
    channels = preprocessing.channels
    return {
        "do_convert_rgb": channels == 3,
        "do_resize": True,
        "resample": as_number[preprocessing.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean) * (channels // len(preprocessing.mean)),
        "image_std": list(preprocessing.std) * (channels // len(preprocessing.std)),
    }


def squeezes_instead(preprocessing: Preprocessing) -> bool:
    """Return whether the result of `write` differs from the preprocessing: see `SQUEEZED`."""
    fixed = preprocessing.resize == "cover" and not preprocessing.max_tokens
    return fixed and len(set(preprocessing.size)) > 1


SQUEEZED = (
    f"{_FILE} squashes images to an oblong size, but this model was trained with the aspect ratio "
    "kept and the centre cropped: image processors of transformers do not support that, so that "
    "outputs there will differ"
)


def _budget(processor: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of packed images. Raises UserError for invalid numbers."""
    for name in ("max_num_patches", "patch_size"):
        number = processor[name]
        if type(number) is not int or number < 1:
            raise UserError(f"{_FILE}: {name} = {number!r} should be a whole number above 0")
    return {
        "max_tokens": processor["max_num_patches"],
        "patch_size": (processor["patch_size"],) * 2,
    }


def _largest_pixel(processor: Mapping[str, Any]) -> float:
    """Value of the pixel 255 before mean and std are applied; 1 with the usual factor."""
    if not processor.get("do_rescale", True):
        return 255.0
    factor = processor.get("rescale_factor", 1 / 255)
    if type(factor) not in (int, float) or not 0 < factor < math.inf:
        raise UserError(f"{_FILE}: rescale_factor = {factor!r} should be a number above 0")
    return 255 * factor


def _kind(processor: Mapping[str, Any], model_type: str | None) -> str | None:
    """Return the class of a processor, such as "ViT"; None if unknown."""
    name = processor.get("image_processor_type") or processor.get("feature_extractor_type")
    if name is None:
        return OF_MODELS.get(model_type)
    name = str(name).removesuffix("Fast").removesuffix("Pil")
    return name.removesuffix("ImageProcessor").removesuffix("FeatureExtractor")


def _sizes(
    processor: Mapping[str, Any], kind: str | None
) -> tuple[tuple[int, int], tuple[int, int], bool] | None:
    """Return (height, width) of resizing and of the crop, and whether the aspect ratio is kept.

    None if the file has no sizes.
    """
    resizes, cuts = processor.get("do_resize", True), processor.get("do_center_crop", False)
    resized = _size(processor, "size") if resizes else None
    keeps_ratio = _keeps_ratio(processor.get("size"), kind)
    if resized is not None and kind and kind.startswith("ConvNext"):
        size, share = resized, _share(processor.get("crop_pct", 224 / 256))
        if max(size) < _SQUEEZED_FROM:
            return tuple(int(side / share) for side in size), size, True
        keeps_ratio = False
    cut = _size(processor, "crop_size") if cuts else None
    if resized is None and cut is not None:
        raise UserError(
            f"{_FILE}: images are cropped without resizing (do_resize = "
            f"{processor.get('do_resize')!r}, size = {processor.get('size')!r}), which is not "
            "supported yet; set do_resize and size"
        )
    return None if resized is None else (resized, cut or resized, keeps_ratio)


def _keeps_ratio(size: Any, kind: str | None) -> bool:
    """Return whether only the shorter side is specified."""
    if isinstance(size, Mapping):
        return size.get("shortest_edge") is not None
    return size is None or (kind in _NOT_SQUARE and not isinstance(size, list))


def _size(processor: Mapping[str, Any], name: str) -> tuple[int, int] | None:
    value = processor.get(name)
    if value is None:
        return None
    sides = value
    if isinstance(value, Mapping) and value.get("longest_edge") is not None:
        raise UserError(
            f"{_FILE}: {name} = {value!r} limits the longer side, which is not supported; "
            "use height and width, or shortest_edge"
        )
    if isinstance(value, Mapping):
        edge = value.get("shortest_edge")
        sides = [edge, edge] if edge is not None else [value.get("height"), value.get("width")]
    elif type(value) is int:
        sides = [value, value]
    valid = isinstance(sides, list) and len(sides) == 2
    if not valid or any(type(side) is not int or side < 1 for side in sides):
        raise UserError(
            f"{_FILE}: {name} = {value!r} should be a number of pixels, or have height and width, "
            "or shortest_edge"
        )
    return tuple(sides)


def _share(value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value <= 1:
        raise UserError(f"{_FILE}: crop_pct = {value!r} should be a number above 0, at most 1")
    return float(value)


def _interpolation(resample: Any) -> str:
    name = _INTERPOLATIONS.get(resample, resample) if isinstance(resample, int | str) else None
    if name not in _INTERPOLATIONS.values():
        allowed = ", ".join(f"{number} ({name})" for number, name in _INTERPOLATIONS.items())
        raise UserError(f"{_FILE}: resample = {resample!r} is invalid; use {allowed}")
    return name


def _numbers(processor: Mapping[str, Any], name: str, scale: float) -> tuple[float, ...]:
    value = processor[name]
    numbers = value if isinstance(value, list) else [value]
    if not numbers or any(type(number) not in (int, float) for number in numbers):
        raise UserError(f"{_FILE}: {name} = {value!r} should be a list of numbers")
    return tuple(float(number) if scale == 1 else number / scale for number in numbers)
