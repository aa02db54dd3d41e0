"""Weights of ResNet: names of torchvision, which timm and most others share, and transformers.

Tensors do not show whether strides are those of v1.5 or of a variant with the same names; the
configuration is checked for them.

Source of the names and facts: torchvision 0.28, timm 1.0 and transformers 5, by running them.
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from vit_jax.data import Preprocessing
from vit_jax.data.images.preprocess import crop_of
from vit_jax.errors import UserError
from vit_jax.models.resnet.module import EXPANSIONS
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import convolutions, processors, timm_arguments
from vit_jax.weights.ecosystems.convolutions import CONV_AXES, IGNORED, batch_norm
from vit_jax.weights.mapping import CONV, Row, Tensors, linear

# ------------------------------------------------------------------------- torchvision's and timm's


def _rows_of_block(ours: str, theirs: str) -> tuple[Row, ...]:
    rows = [
        Row(f"{ours}/shortcut/conv/kernel", f"{theirs}.downsample.0.weight", CONV),
        *batch_norm(f"{ours}/shortcut/norm", f"{theirs}.downsample.1"),
    ]
    for n in (1, 2, 3):
        rows += [
            Row(f"{ours}/conv{n}/kernel", f"{theirs}.conv{n}.weight", CONV),
            *batch_norm(f"{ours}/norm{n}", f"{theirs}.bn{n}"),
        ]
    return tuple(rows)


ROWS = (
    Row("stem/conv/kernel", "conv1.weight", CONV),
    *batch_norm("stem/norm", "bn1"),
    # Their stages are counted from 1.
    *(
        row
        for stage in range(4)
        for row in _rows_of_block(f"stages_{stage}/blocks_{{j}}", f"layer{stage + 1}.{{j}}")
    ),
    *linear("head", "fc"),
)

_FIELDS = {"norm_eps": 1e-5}
ORIGINS = {
    "timm": formats.Origin(
        _FIELDS,
        {**formats.IMAGENET, "crop": 0.95, "interpolation": "bicubic"},
        "timm's weights of its own training (a1 and others), where no config.json says otherwise",
    ),
    "torchvision": formats.Origin(
        _FIELDS,
        {**formats.IMAGENET, "crop": 224 / 256, "interpolation": "bilinear"},
        "torchvision's IMAGENET1K_V1 weights and their transforms",
    ),
    "torchvision-v2": formats.Origin(
        _FIELDS,
        {**formats.IMAGENET, "crop": crop_of((224, 224), (232, 232)), "interpolation": "bilinear"},
        "torchvision's IMAGENET1K_V2 weights and their transforms",
    ),
}

# timm's names of plain ResNets, by block and depths.
_ARCHITECTURES = {
    ("basic", (2, 2, 2, 2)): "resnet18",
    ("basic", (3, 4, 6, 3)): "resnet34",
    ("bottleneck", (3, 4, 6, 3)): "resnet50",
    ("bottleneck", (3, 4, 23, 3)): "resnet101",
    ("bottleneck", (3, 8, 36, 3)): "resnet152",
}
# Arguments of timm's class with which it computes what is here.
_NEEDED = {
    "output_stride": (32,),
    "cardinality": (1,),
    "base_width": (64,),
    "stem_type": ("",),
    "replace_stem_pool": (False,),
    "block_reduce_first": (1,),
    "down_kernel_size": (1,),
    "avg_down": (False,),
    "act_layer": ("relu",),
    "norm_layer": ("batchnorm", "batchnorm2d"),
    "aa_layer": ("",),
    "block_args": ({},),
}


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file with torchvision's names."""
    config = config or {}
    _check_architecture(config)
    origin_name, origin = formats.choose_origin(
        hints, ORIGINS, "timm" if "architecture" in config else None
    )
    stem_width, in_channels, kernel, _ = formats.axes_of(tensors, "conv1.weight", CONV_AXES)
    if kernel not in (3, 7):
        raise UserError(
            f"conv1.weight has {kernel} x {kernel} pixels; a ResNet here has 7 x 7, or 3 x 3 for "
            "small images"
        )
    stages = range(1, 1 + convolutions.count_stages(tensors, "layer{i}.0.conv1.weight", first=1))
    block = "bottleneck" if "layer1.0.conv3.weight" in tensors else "basic"
    last = 3 if block == "bottleneck" else 2
    if block == "bottleneck":
        _check_widths(tensors)
    fields = {
        "num_classes": formats.outputs_of(tensors, "fc.weight"),
        "image_size": convolutions.size_of_images(hints, convolutions.timm_size(config)),
        "in_channels": in_channels,
        "depths": tuple(
            formats.count_blocks(tensors, rf"layer{n}\.(\d+)\.conv1\.weight") for n in stages
        ),
        "widths": tuple(
            formats.axes_of(tensors, f"layer{n}.0.conv{last}.weight", CONV_AXES)[0]
            // EXPANSIONS[block]
            for n in stages
        ),
        "block": block,
        "stem_width": stem_width,
        "small_stem": kernel == 3,
        **origin.fields,
    }
    return formats.ModelSpec(
        fields,
        {**origin.preprocessing, **convolutions.timm_preprocessing(config)},
        origin_name,
        convolutions.timm_names(config, fields["num_classes"]),
    )


def _check_widths(tensors: Tensors) -> None:
    """Raise UserError for convolutions in groups, or wider ones, which have the same names."""
    middle = "layer1.0.conv2.weight"
    width, of_each, *_ = formats.axes_of(tensors, middle, CONV_AXES)
    outputs = formats.axes_of(tensors, "layer1.0.conv3.weight", CONV_AXES)[0]
    expected = outputs // EXPANSIONS["bottleneck"]
    if of_each != width:
        raise UserError(
            f"{middle} has {width} channels and each reads {of_each}: its convolutions are in "
            "groups, as in ResNeXt, which is not supported yet; the nearest one is ResNet"
        )
    if width != expected:
        raise UserError(
            f"{middle} has {width} channels in a block of {outputs}, where a ResNet has "
            f"{expected}: it is a Wide ResNet, which is not supported yet; the nearest one is "
            "ResNet"
        )


def _check_architecture(config: Mapping[str, Any]) -> None:
    """Raise UserError for other architectures of timm with a ResNet's names."""
    name = str(config.get("architecture", "resnet50"))
    if not re.fullmatch(r"(tv_)?resnet\d+(\..*)?", name):
        raise UserError(
            f"config.json: architecture = {name!r}, which has names of ResNet but may differ in "
            "its computation (antialiasing, another activation), is not supported yet"
        )
    timm_arguments.check_plain(config, ("layers", "channels", "stem_width"), _NEEDED)


def timm_config(fields: Mapping[str, Any], preprocessing: Preprocessing, class_names) -> dict:
    """Return timm's `config.json`; UserError for fields that timm does not support."""
    formats.need(
        "timm's config.json", fields, {"small_stem": False, "stem_width": 64, "norm_eps": 1e-5}
    )
    if len(fields["depths"]) != 4:
        raise UserError(f"timm's ResNets have 4 stages, and this one has {len(fields['depths'])}")
    usual = {"basic": "resnet18", "bottleneck": "resnet50"}[fields["block"]]
    architecture = _ARCHITECTURES.get((fields["block"], tuple(fields["depths"])), usual)
    arguments = {"layers": list(fields["depths"]), "channels": list(fields["widths"])}
    return convolutions.timm_config(
        architecture,
        arguments,
        fields,
        preprocessing,
        class_names,
        first="conv1",
        classifier="fc",
    )


# ------------------------------------------------------------------------------------ transformers

_LAYER = "encoder.stages.{i}.layers.{j}"


def _rows_of_layer(number: int) -> tuple[Row, ...]:
    ours, theirs = "stages_{i}/blocks_{j}", f"{_LAYER}.layer.{number - 1}"
    return (
        Row(f"{ours}/conv{number}/kernel", f"{theirs}.convolution.weight", CONV),
        *batch_norm(f"{ours}/norm{number}", f"{theirs}.normalization"),
    )


TRANSFORMERS_ROWS = (
    Row("stem/conv/kernel", "embedder.embedder.convolution.weight", CONV),
    *batch_norm("stem/norm", "embedder.embedder.normalization"),
    Row(
        "stages_{i}/blocks_{j}/shortcut/conv/kernel", f"{_LAYER}.shortcut.convolution.weight", CONV
    ),
    *batch_norm("stages_{i}/blocks_{j}/shortcut/norm", f"{_LAYER}.shortcut.normalization"),
    *(row for number in (1, 2, 3) for row in _rows_of_layer(number)),
    *linear("head", "classifier.1"),
)
TRANSFORMERS_ORIGINS = {
    "resnet": formats.Origin(
        _FIELDS,
        {
            **formats.IMAGENET,
            "crop": 224 / 256,
            "interpolation": "bicubic",
            "crop_rounding": "down",
        },
        "the processor of microsoft/resnet-50, where no preprocessor_config.json says otherwise",
    )
}


def transformers_describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file with the names of transformers."""
    config = config or {}
    for name in ("downsample_in_bottleneck", "downsample_in_first_stage"):
        if config.get(name, False):
            raise UserError(
                f"config.json: {name} = {config[name]!r} has a stride where v1.5 has none, which "
                "is not supported yet"
            )
    if config.get("hidden_act", "relu") != "relu":
        raise UserError(f"config.json: hidden_act = {config['hidden_act']!r}; ResNet has 'relu'")
    origin_name, origin = formats.choose_origin(hints, TRANSFORMERS_ORIGINS)
    stem_width, in_channels, *_ = formats.axes_of(
        tensors, "embedder.embedder.convolution.weight", CONV_AXES
    )
    first = "encoder.stages.{i}.layers.0.layer.0.convolution.weight"
    stages = range(convolutions.count_stages(tensors, first))
    bottleneck = "encoder.stages.0.layers.0.layer.2.convolution.weight" in tensors
    block, last = ("bottleneck", 2) if bottleneck else ("basic", 1)
    preprocessing = {
        **origin.preprocessing,
        **convolutions.transformers_preprocessing(config),
    }
    size = preprocessing.pop("size", None)
    fields = {
        "num_classes": formats.outputs_of(tensors, "classifier.1.weight"),
        "image_size": convolutions.size_of_images(hints, size),
        "in_channels": in_channels,
        "depths": tuple(
            formats.count_blocks(
                tensors, rf"encoder\.stages\.{i}\.layers\.(\d+)\.layer\.0\.convolution\.weight"
            )
            for i in stages
        ),
        "widths": tuple(
            formats.axes_of(
                tensors, f"encoder.stages.{i}.layers.0.layer.{last}.convolution.weight", CONV_AXES
            )[0]
            // EXPANSIONS[block]
            for i in stages
        ),
        "block": block,
        "stem_width": stem_width,
        "small_stem": False,
        **origin.fields,
    }
    names = convolutions.transformers_names(config, fields["num_classes"])
    return formats.ModelSpec(fields, preprocessing, origin_name, names)


def transformers_finish(
    tensors: dict[str, np.ndarray], fields: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Return the names of the class with a head, if there is one."""
    tensors = convolutions.with_counters(tensors, fields)
    return convolutions.with_prefix(tensors, fields, "resnet")


def transformers_config(fields: Mapping[str, Any], preprocessing: Preprocessing, class_names):
    """Return transformers' `config.json`; UserError for fields that it does not support."""
    formats.need("transformers' config.json", fields, {"small_stem": False, "norm_eps": 1e-5})
    classes = ("ResNetModel", "ResNetForImageClassification")
    return {
        **convolutions.transformers_config("resnet", classes, fields, class_names),
        "embedding_size": fields["stem_width"],
        "hidden_sizes": [width * EXPANSIONS[fields["block"]] for width in fields["widths"]],
        "depths": list(fields["depths"]),
        "layer_type": fields["block"],
        "hidden_act": "relu",
        "downsample_in_first_stage": False,
        "downsample_in_bottleneck": False,
    }


FORMATS = (
    formats.CheckpointFormat(
        name="timm",
        signature=(r"conv1\.weight", r"bn1\.weight", r"layer1\.0\.conv1\.weight"),
        rows=ROWS,
        describe=describe,
        ignored=IGNORED,
        finish=convolutions.with_counters,
        config=timm_config,
        architecture="ResNet",
    ),
    formats.CheckpointFormat(
        name="huggingface",
        model_types=("resnet",),
        signature=(
            r"embedder\.embedder\.convolution\.weight",
            r"encoder\.stages\.0\.layers\.0\.layer\.0\.convolution\.weight",
        ),
        rows=TRANSFORMERS_ROWS,
        describe=transformers_describe,
        ignored=IGNORED,
        normalize_names=partial(convolutions.without_prefix, kind="resnet"),
        finish=transformers_finish,
        config=transformers_config,
        preprocessor=processors.write,
        architecture="ResNet",
    ),
)
