"""Names of timm, of ConvNeXt and ConvNeXt V2.

timm's small models, atto to nano, have 1 x 1 convolutions for the layers of their MLPs: the same
function, with two more axes in the tensors.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.convnext.weights.fields import BICUBIC, FIELDS, make_format, read_fields, rows
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import convolutions, timm_arguments
from vit_jax.weights.mapping import Tensors

NAMES = {
    "conv": "stages.{i}.blocks.{j}.conv_dw",
    "norm": "stages.{i}.blocks.{j}.norm",
    "fc1": "stages.{i}.blocks.{j}.mlp.fc1",
    "grn": "stages.{i}.blocks.{j}.mlp.grn",
    "fc2": "stages.{i}.blocks.{j}.mlp.fc2",
    "scale": "stages.{i}.blocks.{j}.gamma",
    "downsample": "stages.{i}.downsample",
    "patch": "stem.0",
    "pre_norm": "stem.1",
    "last_norm": "head.norm",
    "head": "head.fc",
}
ORIGINS = {
    "timm": formats.Origin(FIELDS, BICUBIC, "timm's defaults for `convnext_*` and `convnextv2_*`"),
}
# timm's with the same names for blocks of another kind, or with other norms and activations.
OTHERS = r"edgenext_.*|inception_next_.*|convnext_.*_rms.*|test_convnext.*"

# Arguments of timm's class: those that are read, and those with which it computes what is here.
_READ = (
    *("depths", "dims", "patch_size", "kernel_sizes", "ls_init_value", "norm_eps", "act_layer"),
    *("conv_mlp", "use_grn"),
)
_NEEDED = {
    "output_stride": (32,),
    "stem_type": ("patch",),
    "head_norm_first": (False,),
    "conv_bias": (True,),
    "norm_layer": ("layernorm",),
}
# timm's sizes by depths and first width; `convnextv2_` has them all, `convnext_` all but the last.
_SIZES = {
    ((2, 2, 6, 2), 40): "atto",
    ((2, 2, 6, 2), 48): "femto",
    ((2, 2, 6, 2), 64): "pico",
    ((2, 2, 8, 2), 80): "nano",
    ((3, 3, 9, 3), 96): "tiny",
    ((3, 3, 27, 3), 96): "small",
    ((3, 3, 27, 3), 128): "base",
    ((3, 3, 27, 3), 192): "large",
    ((3, 3, 27, 3), 352): "huge",
}
_OF_CONVOLUTIONS = ("atto", "femto", "pico", "nano")


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file with timm's names; expects normalized tensors."""
    config = config or {}
    settings = formats.configured_section(config, "model_args")
    if settings.get("act_layer", "gelu") != "gelu":
        raise UserError(
            f"config.json: act_layer = {settings['act_layer']!r}; ConvNeXt has 'gelu' here"
        )
    timm_arguments.check_plain(config, _READ, _NEEDED)
    origin_name, origin = formats.choose_origin(hints, ORIGINS)
    # timm's largest, of OpenCLIP, has torch's own epsilon.
    usual = 1e-5 if str(config.get("architecture")).startswith("convnext_xxlarge") else 1e-6
    eps = settings.get("norm_eps") or usual
    if type(eps) is not float or not 0 < eps < 1:
        raise UserError(f"config.json: norm_eps = {eps!r} should be a number between 0 and 1")
    size = convolutions.size_of_images(hints, convolutions.timm_size(config))
    fields = read_fields(tensors, NAMES, size, eps)
    return formats.ModelSpec(
        fields,
        {**origin.preprocessing, **convolutions.timm_preprocessing(config)},
        origin_name,
        convolutions.timm_names(config, fields["num_classes"]),
    )


def normalize(tensors: Tensors) -> Tensors:
    """Return the layers of MLPs as matrices."""
    return {
        name: array.reshape(array.shape[:2])
        if ".mlp.fc" in name and array.ndim == 4 and array.shape[2:] == (1, 1)
        else array
        for name, array in tensors.items()
    }


def finish(tensors: dict[str, np.ndarray], fields: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the layers of MLPs as 1 x 1 convolutions in the models where timm has these."""
    if _size(fields) not in _OF_CONVOLUTIONS:
        return tensors
    return {
        name: array[:, :, None, None] if ".mlp.fc" in name and array.ndim == 2 else array
        for name, array in tensors.items()
    }


def config(fields: Mapping[str, Any], preprocessing: Preprocessing, class_names) -> dict:
    """Return timm's `config.json`; UserError for fields that timm does not support."""
    formats.need("timm's config.json", fields, {"mlp_ratio": 4})
    if len(fields["depths"]) != 4:
        raise UserError(f"timm's ConvNeXts have 4 stages, and this one has {len(fields['depths'])}")
    arguments = {
        "depths": list(fields["depths"]),
        "dims": list(fields["widths"]),
        "patch_size": fields["patch_size"],
        "kernel_sizes": fields["kernel_size"],
        "ls_init_value": fields["layer_scale"],
        "norm_eps": fields["norm_eps"],
        "use_grn": fields["response_norm"],
        "conv_mlp": _size(fields) in _OF_CONVOLUTIONS,
    }
    return convolutions.timm_config(
        f"{'convnextv2' if fields['response_norm'] else 'convnext'}_{_size(fields) or 'tiny'}",
        arguments,
        fields,
        preprocessing,
        class_names,
        first="stem.0",
        classifier="head.fc",
    )


def _size(fields: Mapping[str, Any]) -> str | None:
    """Return timm's name of the sizes; None if it has none."""
    size = _SIZES.get((tuple(fields["depths"]), fields["widths"][0]))
    return None if size == "huge" and not fields["response_norm"] else size


FORMAT = make_format(
    "timm",
    NAMES,
    rows(NAMES),
    describe,
    normalize_names=normalize,
    finish=finish,
    config=config,
    others=OTHERS,
)
