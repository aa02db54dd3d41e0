"""Names of transformers' `dinov3_convnext`: DINOv3's ConvNeXts, encoders without a head.

timm's `convnext_*.dinov3_lvd1689m` and Meta's files have the names of every ConvNeXt there. DINOv3
norms the tokens of the last map as well as their mean; here, as in every ConvNeXt, the tokens of
`features` are before the norm.

Source of the names and facts: transformers 5.24, `DINOv3ConvNextModel`, by running it.
"""

from collections.abc import Mapping
from typing import Any

from vit_jax.errors import UserError
from vit_jax.models.convnext.weights.fields import FIELDS, make_format, read_fields, rows
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import convolutions
from vit_jax.weights.mapping import Tensors

_LAYER = "stages.{i}.layers.{j}"
NAMES = {
    "conv": f"{_LAYER}.depthwise_conv",
    "norm": f"{_LAYER}.layer_norm",
    "fc1": f"{_LAYER}.pointwise_conv1",
    "fc2": f"{_LAYER}.pointwise_conv2",
    "scale": f"{_LAYER}.gamma",
    "downsample": "stages.{i}.downsample_layers",
    "patch": "stages.0.downsample_layers.0",
    "pre_norm": "stages.0.downsample_layers.1",
    "last_norm": "layer_norm",
}
ORIGINS = {
    "dinov3": formats.Origin(
        FIELDS,
        {**formats.IMAGENET, "crop": 1.0, "interpolation": "bilinear", "resize": "squash"},
        "transformers' DINOv3ViTImageProcessor, which squeezes images to 224 pixels",
    ),
}


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file with these names; expects normalized ones."""
    config = config or {}
    if config.get("hidden_act", "gelu") != "gelu":
        raise UserError(
            f"config.json: hidden_act = {config['hidden_act']!r}; ConvNeXt has 'gelu' here"
        )
    eps = config.get("layer_norm_eps", FIELDS["norm_eps"])
    if type(eps) is not float or not 0 < eps < 1:
        raise UserError(f"config.json: layer_norm_eps = {eps!r} should be a number between 0 and 1")
    origin_name, origin = formats.choose_origin(hints, ORIGINS)
    preprocessing = {**origin.preprocessing, **convolutions.transformers_preprocessing(config)}
    size = preprocessing.pop("size", None)
    fields = read_fields(tensors, NAMES, convolutions.size_of_images(hints, size), eps)
    return formats.ModelSpec(fields, preprocessing, origin_name)


def normalize(tensors: Tensors) -> Tensors:
    """Return the names in files; in memory the stages are those of `model`."""
    return {name.removeprefix("model."): array for name, array in tensors.items()}


FORMAT = make_format(
    "huggingface",
    NAMES,
    rows(NAMES),
    describe,
    normalize_names=normalize,
    model_types=("dinov3_convnext",),
)
