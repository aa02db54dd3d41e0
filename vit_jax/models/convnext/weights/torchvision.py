"""Names of torchvision."""

from collections.abc import Mapping
from typing import Any

from vit_jax.data.images.preprocess import crop_of
from vit_jax.models.convnext.weights.fields import FIELDS, make_format, read_fields, rows
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import convolutions
from vit_jax.weights.mapping import Tensors

# After `normalize`, which numbers stages and downsampling like the other libraries do.
NAMES = {
    "conv": "stages.{i}.{j}.block.0",
    "norm": "stages.{i}.{j}.block.2",
    "fc1": "stages.{i}.{j}.block.3",
    "fc2": "stages.{i}.{j}.block.5",
    "scale": "stages.{i}.{j}.layer_scale",
    "downsample": "downsamples.{i}",
    "patch": "features.0.0",
    "pre_norm": "features.0.1",
    "last_norm": "classifier.0",
    "head": "classifier.2",
}
ORIGINS = {
    "torchvision": formats.Origin(
        FIELDS,
        {**formats.IMAGENET, "interpolation": "bilinear"},
        "torchvision's IMAGENET1K_V1 weights and their transforms",
    ),
}
# torchvision's resize_size of each model, by its first depths and width; 224 are cut out.
_RESIZED = {(9, 96): 236, (27, 96): 230, (27, 128): 232, (27, 192): 232}


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file with torchvision's names; expects normalized ones."""
    origin_name, origin = formats.choose_origin(hints, ORIGINS)
    fields = read_fields(tensors, NAMES, convolutions.size_of_images(hints, None))
    resized = _RESIZED.get((max(fields["depths"]), fields["widths"][0]), 256)
    crop = crop_of((224, 224), (resized, resized))
    return formats.ModelSpec(fields, {**origin.preprocessing, "crop": crop}, origin_name)


def normalize(tensors: Tensors) -> Tensors:
    """Number stages consecutively: torchvision counts the layers between them too.

    `features.1`, `.3`, ... are the stages, and `.2`, `.4`, ... what halves the image before one.
    """

    def renamed(name: str) -> str:
        first, number, *rest = name.split(".")
        if first != "features" or not number.isdecimal() or len(number) > 3 or number == "0":
            return name
        kind = "stages" if int(number) % 2 else "downsamples"
        return ".".join([kind, str(int(number) // 2), *rest])

    def is_convnext(name: str) -> bool:
        return name.startswith("features.1.0.block.5.")

    if not any(map(is_convnext, tensors)):
        return tensors
    return {
        renamed(name) if "." in name else name: (
            # (channels, 1, 1) of theirs
            array.reshape(-1) if name.endswith(".layer_scale") else array
        )
        for name, array in tensors.items()
    }


FORMAT = make_format("torchvision", NAMES, rows(NAMES), describe, normalize_names=normalize)
