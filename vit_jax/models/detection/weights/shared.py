"""Classes, preprocessing and configurations that the formats of detectors share."""

from collections.abc import Mapping
from typing import Any

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.weights import formats
from vit_jax.weights.mapping import Tensors


def classes_of(tensors: Tensors, name: str) -> int:
    """Return the number of classes of a head whose last output is "no object"."""
    outputs = formats.axes_of(tensors, name, "out, in")[0]
    if outputs < 2:
        raise UserError(f"{name} has {outputs} output, but a detector has two at least")
    return outputs - 1


def class_names_of(config: Mapping[str, Any], classes: int) -> tuple[str, ...] | None:
    """Return the names of the classes in a configuration; None if it has none.

    COCO's numbers of classes have gaps, which get names such as "N/A".
    """
    named = config.get("id2label")
    if not isinstance(named, Mapping) or not named:
        return None
    try:
        numbered = {int(number): str(name) for number, name in named.items()}
    except ValueError:
        numbered = {}
    if not numbered or not all(0 <= number < classes for number in numbered):
        raise UserError(
            f"config.json: id2label should name outputs from 0 to {classes - 1}; it has "
            f"{str(named)[:80]}"
        )
    if all(name == f"LABEL_{number}" for number, name in numbered.items()):
        return None
    return tuple(numbered.get(number, f"unused {number}") for number in range(classes))


def preprocessing_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `Preprocessing` of a file: the whole image, stretched to the size."""
    processor = config.get("preprocessor") or {}
    found = {**formats.IMAGENET, "interpolation": "bilinear", "resize": "squash", "crop": 1.0}
    for ours, theirs in (("mean", "image_mean"), ("std", "image_std")):
        if (numbers := formats.configured_numbers(processor, theirs)) is not None:
            found[ours] = numbers
    return found


def processor_of(preprocessing: Preprocessing, kind: str) -> dict[str, Any]:
    """Return the content of `preprocessor_config.json`, of a kind such as "Detr"."""
    height, width = preprocessing.size
    return {
        "image_processor_type": f"{kind}ImageProcessor",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "do_rescale": True,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
        "do_pad": False,
    }
