"""Names of the authors' repositories, facebookresearch/ConvNeXt and ConvNeXt-V2.

The files of masked pre-training have no last norm: fine-tuning begins with a fresh one. Meta's
ConvNeXts of DINOv3 have the same names and the last norm twice.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.models.convnext.weights.fields import (
    BICUBIC,
    FIELDS,
    has_response_norm,
    make_format,
    read_fields,
    rows,
)
from vit_jax.models.validation import pair
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import convolutions
from vit_jax.weights.mapping import Tensors

NAMES = {
    "conv": "stages.{i}.{j}.dwconv",
    "norm": "stages.{i}.{j}.norm",
    "fc1": "stages.{i}.{j}.pwconv1",
    "grn": "stages.{i}.{j}.grn",
    "fc2": "stages.{i}.{j}.pwconv2",
    "scale": "stages.{i}.{j}.gamma",
    "downsample": "downsample_layers.{i}",
    "patch": "downsample_layers.0.0",
    "pre_norm": "downsample_layers.0.1",
    "last_norm": "norm",
    "head": "head",
}
ORIGINS = {
    "convnext": formats.Origin(
        FIELDS, BICUBIC, "the ConvNeXt repository: datasets.py, build_transform"
    ),
}
ORIGINS_V2 = {
    "convnextv2": formats.Origin(
        FIELDS, BICUBIC, "the ConvNeXt-V2 repository: datasets.py, build_transform"
    ),
}
# Meta's DINOv3, of which images are squeezed to 256 pixels.
ORIGINS_DINOV3 = {
    "dinov3": formats.Origin(
        FIELDS,
        {**formats.IMAGENET, "crop": 1.0, "interpolation": "bilinear", "resize": "squash"},
        "the dinov3 repository: README.md, make_transform",
    ),
}
IGNORED = {r"norms\.\d+\..*": "the last norm again"}


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file of an authors' repository; expects normalized tensors."""
    is_dinov3 = "norms.3.weight" in tensors
    v1 = ORIGINS_DINOV3 if is_dinov3 else ORIGINS
    origins = ORIGINS_V2 if has_response_norm(tensors) else v1
    origin_name, origin = formats.choose_origin(hints, origins)
    size = convolutions.size_of_images(hints, None, 256 if is_dinov3 else 224)
    fields = read_fields(tensors, NAMES, size)
    preprocessing = dict(origin.preprocessing)
    if min(pair(fields["image_size"])) >= 384:  # squeezed there, without a crop
        preprocessing |= {"crop": 1.0, "resize": "squash"}
    return formats.ModelSpec(fields, preprocessing, origin_name)


def normalize(tensors: Tensors) -> Tensors:
    """Return response norms as vectors, and a fresh last norm for files of pre-training."""
    if not has_response_norm(tensors):
        return tensors
    normalized = {
        # (1, 1, 1, channels) of dense layers, (1, channels) of sparse ones
        name: array.reshape(-1) if ".grn." in name else array
        for name, array in tensors.items()
    }
    last = [name for name in tensors if name.startswith("stages.3.") and ".pwconv2.bias" in name]
    if last and not any(name.startswith(("norm.", "head.")) for name in tensors):
        width = tensors[last[0]].size
        normalized["norm.weight"] = np.ones(width, np.float32)
        normalized["norm.bias"] = np.zeros(width, np.float32)
    return normalized


FORMAT = make_format(
    "convnext",
    NAMES,
    rows(NAMES, affine=("gamma", "beta")),
    describe,
    normalize_names=normalize,
    ignored=IGNORED,
)
