"""Names of transformers, of its `convnext` and `convnextv2`.

The last norm has an epsilon of its own, 1e-12, where the authors and all other norms have 1e-6;
here it is the authors' in every norm, which changes nothing that a float32 shows while pooled
features are about as large as 1.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.convnext.weights.fields import (
    BICUBIC,
    FIELDS,
    has_response_norm,
    make_format,
    read_fields,
    rows,
)
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import convolutions, processors
from vit_jax.weights.mapping import Layout, Tensors

_LAYER = "encoder.stages.{i}.layers.{j}"
NAMES = {
    "conv": f"{_LAYER}.dwconv",
    "norm": f"{_LAYER}.layernorm",
    "fc1": f"{_LAYER}.pwconv1",
    "grn": f"{_LAYER}.grn",
    "fc2": f"{_LAYER}.pwconv2",
    "scale": f"{_LAYER}.layer_scale_parameter",
    "downsample": "encoder.stages.{i}.downsampling_layer",
    "patch": "embeddings.patch_embeddings",
    "pre_norm": "embeddings.layernorm",
    "last_norm": "layernorm",
    "head": "classifier",
}
# (1, 1, 1, channels) of theirs.
_RESPONSE = Layout(
    lambda arrays, shape: arrays[0].reshape(shape), lambda x: [x[None, None, None, :]]
)
_ROWS = rows(NAMES, response=_RESPONSE)

ORIGINS = {
    "convnext": formats.Origin(
        FIELDS,
        {**BICUBIC, "crop_rounding": "down"},
        "the preprocessor_config.json of facebook/convnext-tiny-224",
    ),
}
ORIGINS_V2 = {
    "convnextv2": formats.Origin(
        FIELDS,
        {**BICUBIC, "crop_rounding": "down"},
        "transformers' ConvNextImageProcessor, with which its convnextv2 models are converted",
    ),
}


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file with the names of transformers; expects normalized ones."""
    config = config or {}
    if config.get("hidden_act", "gelu") != "gelu":
        raise UserError(
            f"config.json: hidden_act = {config['hidden_act']!r}; ConvNeXt has 'gelu' here"
        )
    eps = config.get("layer_norm_eps", 1e-12)
    if type(eps) not in (int, float) or not 0 <= eps <= 1e-6:
        raise UserError(
            f"config.json: layer_norm_eps = {eps!r} is that of the last norm alone, and the others "
            "have 1e-6; such a model is not supported yet"
        )
    origins = ORIGINS_V2 if has_response_norm(tensors) else ORIGINS
    origin_name, origin = formats.choose_origin(hints, origins)
    preprocessing = {
        **origin.preprocessing,
        **convolutions.transformers_preprocessing(config),
    }
    size = preprocessing.pop("size", None)
    fields = read_fields(tensors, NAMES, convolutions.size_of_images(hints, size))
    names = convolutions.transformers_names(config, fields["num_classes"])
    return formats.ModelSpec(fields, preprocessing, origin_name, names)


def normalize(tensors: Tensors) -> Tensors:
    """Remove the prefix of names that the classes with a head have."""
    return convolutions.without_prefix(convolutions.without_prefix(tensors, "convnext"), _V2)


def finish(tensors: dict[str, np.ndarray], fields: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the names of the class with a head."""
    return convolutions.with_prefix(tensors, fields, _kind(fields))


def config(fields: Mapping[str, Any], preprocessing: Preprocessing, class_names):
    """Return transformers' `config.json`; UserError for fields that it does not support."""
    needed = {"mlp_ratio": 4, "kernel_size": 7, "norm_eps": 1e-6}
    kind, name = _kind(fields), "ConvNext"
    if kind == _V2:
        needed["layer_scale"], name = None, "ConvNextV2"
    formats.need("transformers' config.json", fields, needed, f" of a {name}")
    classes = (f"{name}Model", f"{name}ForImageClassification")
    scale = {} if kind == _V2 else {"layer_scale_init_value": fields["layer_scale"] or 0.0}
    return {
        **convolutions.transformers_config(kind, classes, fields, class_names),
        "patch_size": fields["patch_size"],
        "num_stages": len(fields["depths"]),
        "hidden_sizes": list(fields["widths"]),
        "depths": list(fields["depths"]),
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-6,  # of the last norm
        **scale,
        "image_size": fields["image_size"],
    }


_V2 = "convnextv2"


def _kind(fields: Mapping[str, Any]) -> str:
    return _V2 if fields["response_norm"] else "convnext"


FORMAT = make_format(
    "huggingface",
    NAMES,
    _ROWS,
    describe,
    normalize_names=normalize,
    finish=finish,
    config=config,
    preprocessor=processors.write,
    model_types=("convnext", "convnextv2"),
)
