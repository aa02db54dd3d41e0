"""Weights of EfficientNet: names of timm, which also has the authors' weights, and torchvision.

Neither padding nor epsilon are in the tensors. timm's `efficientnet_*` and torchvision's pad as
torch does, the authors' weights, timm's `tf_efficientnet_*`, as TensorFlow does. A file with
timm's names and no `config.json` does not determine which, so that `--origin` is required.

Source of the names and facts: timm 1.0 and torchvision 0.28, by running them.
"""

import re
from collections.abc import Mapping
from typing import Any

from vit_jax.data import Preprocessing
from vit_jax.data.images.preprocess import crop_of
from vit_jax.errors import UserError
from vit_jax.models.efficientnet.module import EfficientNet
from vit_jax.models.registry import MODELS, model_fields
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import convolutions, timm_arguments
from vit_jax.weights.ecosystems.convolutions import (
    CONV_AXES,
    IGNORED,
    POINTWISE,
    batch_norm,
)
from vit_jax.weights.mapping import CONV, Row, Tensors, linear

STAGES = len(EfficientNet.depths)


def _conv_norm(ours: str, conv: str, norm: str) -> tuple[Row, ...]:
    return (Row(f"{ours}/conv/kernel", f"{conv}.weight", CONV), *batch_norm(f"{ours}/norm", norm))


def _timm_block(stage: int) -> tuple[Row, ...]:
    """Return the rows of a block.

    In the first stage, without expansion, timm numbers norms from 1 too: the same norm has another
    number.
    """
    ours, theirs = f"stages_{stage}/blocks_{{j}}", f"blocks.{stage}.{{j}}"
    names = {"expand": ("conv_pw", "bn1"), "depthwise": ("conv_dw", "bn2")}
    names["project"] = ("conv_pwl", "bn3")
    if stage == 0:
        names = {"depthwise": ("conv_dw", "bn1"), "project": ("conv_pw", "bn2")}
    return (
        *(
            row
            for part, (conv, norm) in names.items()
            for row in _conv_norm(f"{ours}/{part}", f"{theirs}.{conv}", f"{theirs}.{norm}")
        ),
        *linear(f"{ours}/se/reduce", f"{theirs}.se.conv_reduce", POINTWISE),
        *linear(f"{ours}/se/expand", f"{theirs}.se.conv_expand", POINTWISE),
    )


def _torchvision_block(stage: int) -> tuple[Row, ...]:
    """Return the rows of a block, whose layers are numbered; the first stage lacks the first."""
    ours, theirs = f"stages_{stage}/blocks_{{j}}", f"features.{stage + 1}.{{j}}.block"
    parts = ["expand", "depthwise", "se", "project"][stage == 0 :]
    rows = []
    for number, part in enumerate(parts):
        layer = f"{theirs}.{number}"
        if part == "se":
            rows += linear(f"{ours}/se/reduce", f"{layer}.fc1", POINTWISE)
            rows += linear(f"{ours}/se/expand", f"{layer}.fc2", POINTWISE)
        else:
            rows += _conv_norm(f"{ours}/{part}", f"{layer}.0", f"{layer}.1")
    return tuple(rows)


TIMM_ROWS = (
    *_conv_norm("stem", "conv_stem", "bn1"),
    *(row for stage in range(STAGES) for row in _timm_block(stage)),
    *_conv_norm("last", "conv_head", "bn2"),
    *linear("head", "classifier"),
)
TORCHVISION_ROWS = (
    *_conv_norm("stem", "features.0.0", "features.0.1"),
    *(row for stage in range(STAGES) for row in _torchvision_block(stage)),
    *_conv_norm("last", f"features.{STAGES + 1}.0", f"features.{STAGES + 1}.1"),
    *linear("head", "classifier.1"),
)

_TORCH = {"padding": "torch", "norm_eps": 1e-5}
TIMM_ORIGINS = {
    "timm": formats.Origin(
        _TORCH,
        {**formats.IMAGENET, "crop": 0.875, "interpolation": "bicubic"},
        "timm's own training of `efficientnet_*`, where no config.json says otherwise",
    ),
    "google": formats.Origin(
        {"padding": "same", "norm_eps": 1e-3},
        {**formats.IMAGENET, "crop": 0.875, "interpolation": "bicubic"},
        "the authors' weights as timm has them, `tf_efficientnet_*`",
    ),
}
# Pixels of timm's own training, fewer than the paper's: b1.ft_in1k, b2.ra_in1k, b3.ra2_in1k
# and b4.ra2_in1k.
TIMM_SIZES = {
    "EfficientNet-B1": 224,
    "EfficientNet-B2": 256,
    "EfficientNet-B3": 288,
    "EfficientNet-B4": 320,
}
# crop_pct of timm's `tf_efficientnet_*`, of which the larger see more of the image.
GOOGLE_CROPS = {
    "EfficientNet-B1": 0.882,
    "EfficientNet-B2": 0.89,
    "EfficientNet-B3": 0.904,
    "EfficientNet-B4": 0.922,
    "EfficientNet-B5": 0.934,
    "EfficientNet-B6": 0.942,
    "EfficientNet-B7": 0.949,
}
TORCHVISION_ORIGINS = {
    "torchvision": formats.Origin(
        _TORCH,
        {**formats.IMAGENET, "interpolation": "bicubic"},
        "torchvision's IMAGENET1K_V1 weights and their transforms",
    ),
    "torchvision-v2": formats.Origin(
        _TORCH,
        {**formats.IMAGENET, "interpolation": "bilinear"},
        "torchvision's IMAGENET1K_V2 weights of its B1 and their transforms",
    ),
}
# (crop_size, resize_size) of torchvision's transforms; of others 224 and 256.
TORCHVISION_SIZES = {
    "EfficientNet-B1": (240, 256),
    "EfficientNet-B2": (288, 288),
    "EfficientNet-B3": (300, 320),
    "EfficientNet-B4": (380, 384),
    "EfficientNet-B5": (456, 456),
    "EfficientNet-B6": (528, 528),
    "EfficientNet-B7": (600, 600),
}
_B1_V2_SIZES = (240, 255)


def timm_describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file with timm's names."""
    config = config or {}
    origin_name, origin = formats.choose_origin(hints, TIMM_ORIGINS, _configured_origin(config))
    needed = {"output_stride": (32,), "act_layer": ("silu", "swish")}
    timm_arguments.check_plain(config, ("num_features", "stem_size"), needed)
    depths = _depths(tensors, "blocks.{i}.{j}.conv_dw.weight", first=0)
    blocks = [f"blocks.{stage}.0" for stage in range(STAGES)]
    outputs = ["conv_pw", *["conv_pwl"] * (STAGES - 1)]
    fields = _fields(
        tensors,
        depths,
        stem="conv_stem",
        depthwise=[f"{block}.conv_dw" for block in blocks],
        outputs=[f"{block}.{name}" for block, name in zip(blocks, outputs, strict=True)],
        last="conv_head",
        head="classifier",
    )
    size = convolutions.timm_size(config)
    usual = model_fields(_registered(fields) or "EfficientNet")["image_size"]
    if origin_name == "timm":
        usual = TIMM_SIZES.get(_registered(fields), usual)
    fields |= {"image_size": convolutions.size_of_images(hints, size, usual), **origin.fields}
    preprocessing = dict(origin.preprocessing)
    if origin_name == "google":
        preprocessing["crop"] = GOOGLE_CROPS.get(_registered(fields), preprocessing["crop"])
    return formats.ModelSpec(
        fields,
        {**preprocessing, **convolutions.timm_preprocessing(config)},
        origin_name,
        convolutions.timm_names(config, fields["num_classes"]),
    )


def timm_config(fields: Mapping[str, Any], preprocessing: Preprocessing, class_names) -> dict:
    """Return timm's `config.json`; UserError for other sizes than those of B0 to B7."""
    beginnings = {
        ("torch", 1e-5): "efficientnet_b",
        ("same", 1e-3): "tf_efficientnet_b",
    }
    name = _registered(fields)
    beginning = beginnings.get((fields["padding"], fields["norm_eps"]))
    if name is None or beginning is None:
        raise UserError(
            "timm's config.json supports only EfficientNet-B0 to -B7, with padding='torch' and "
            "norm_eps=1e-5 or with padding='same' and norm_eps=1e-3; keep the run folder"
        )
    return convolutions.timm_config(
        beginning + name[-1],
        {},
        fields,
        preprocessing,
        class_names,
        first="conv_stem",
        classifier="classifier",
    )


def torchvision_describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file with torchvision's names."""
    depths = _depths(tensors, "features.{i}.{j}.block.0.0.weight", first=1)
    blocks = [f"features.{stage + 1}.0.block" for stage in range(STAGES)]
    fields = _fields(
        tensors,
        depths,
        stem="features.0.0",
        depthwise=[f"{block}.{min(stage, 1)}.0" for stage, block in enumerate(blocks)],
        outputs=[f"{block}.{min(stage, 1) + 2}.0" for stage, block in enumerate(blocks)],
        last=f"features.{STAGES + 1}.0",
        head="classifier.1",
    )
    name = _registered(fields)
    of_this_size = TORCHVISION_ORIGINS if name == "EfficientNet-B1" else ("torchvision",)
    origin_name, origin = formats.choose_origin(
        hints, {origin: TORCHVISION_ORIGINS[origin] for origin in of_this_size}
    )
    crop, resized = TORCHVISION_SIZES.get(name, (224, 256))
    if origin_name == "torchvision-v2":
        crop, resized = _B1_V2_SIZES
    fields |= {"image_size": convolutions.size_of_images(hints, None, crop), **origin.fields}
    if fields["head_width"] >= 2048:  # its B5, B6 and B7
        fields["norm_eps"] = 1e-3
    preprocessing = {**origin.preprocessing, "crop": crop_of((crop, crop), (resized, resized))}
    return formats.ModelSpec(fields, preprocessing, origin_name)


# ----------------------------------------------------------------------------------------- inside


def _configured_origin(config: Mapping[str, Any]) -> str | None:
    if "architecture" not in config:
        return None
    name = str(config["architecture"])
    if not re.fullmatch(r"(tf_)?efficientnet_b\d", name):
        raise UserError(
            f"config.json: architecture = {name!r}, which has names of EfficientNet but may differ "
            "in its computation, is not supported; use tf_efficientnet_b0 to b7 or efficientnet_b0 "
            "to b7"
        )
    return "google" if name.startswith("tf_") else "timm"


def _depths(tensors: Tensors, name: str, first: int) -> tuple[int, ...]:
    """Return the blocks of each stage; UserError if the number of stages is not the paper's."""
    stages = convolutions.count_stages(tensors, name.replace("{j}", "0"), first)
    if stages != STAGES:
        raise UserError(f"an EfficientNet has {STAGES} stages of blocks, and the file has {stages}")
    pattern = name.replace(".", r"\.").replace("{j}", r"(\d+)")
    return tuple(
        formats.count_blocks(tensors, pattern.replace("{i}", str(first + stage)))
        for stage in range(stages)
    )


def _fields(
    tensors: Tensors,
    depths: tuple[int, ...],
    *,
    stem: str,
    depthwise: list[str],
    outputs: list[str],
    last: str,
    head: str,
) -> dict[str, Any]:
    """Return the model's fields, from the shapes of these tensors; strides are the paper's.

    Args:
        stem, last, head: names of layers. depthwise, outputs: of each stage's first block.
    """
    shapes = [formats.axes_of(tensors, f"{name}.weight", CONV_AXES) for name in depthwise]
    widths = [formats.axes_of(tensors, f"{name}.weight", CONV_AXES)[0] for name in outputs]
    stem_width, in_channels, *_ = formats.axes_of(tensors, f"{stem}.weight", CONV_AXES)
    inputs = [stem_width, *widths]
    return {
        "num_classes": formats.outputs_of(tensors, f"{head}.weight"),
        "in_channels": in_channels,
        "depths": depths,
        "widths": tuple(widths),
        "kernels": tuple(shape[2] for shape in shapes),
        "strides": EfficientNet.strides,
        "expansions": tuple(
            max(1, shape[0] // width) for shape, width in zip(shapes, inputs, strict=False)
        ),
        "stem_width": stem_width,
        "stem_stride": 2,
        "head_width": formats.axes_of(tensors, f"{last}.weight", CONV_AXES)[0],
        "squeeze": 0.25,
    }


def _registered(fields: Mapping[str, Any]) -> str | None:
    """Return the variant, B0 to B7, that has these sizes."""
    sizes = ("depths", "widths", "kernels", "strides", "expansions", "stem_width", "head_width")
    for name in MODELS:
        if name.startswith("EfficientNet-") and all(
            model_fields(name)[size] == fields[size] for size in (*sizes, "stem_stride", "squeeze")
        ):
            return name
    return None


FORMATS = (
    formats.CheckpointFormat(
        name="timm",
        signature=(
            r"conv_stem\.weight",
            r"blocks\.0\.0\.se\.conv_reduce\.weight",
            r"bn2\.weight",
        ),
        rows=TIMM_ROWS,
        describe=timm_describe,
        ignored=IGNORED,
        finish=convolutions.with_counters,
        config=timm_config,
        architecture="EfficientNet",
    ),
    formats.CheckpointFormat(
        name="torchvision",
        signature=(
            r"features\.1\.0\.block\.0\.0\.weight",
            r"features\.1\.0\.block\.1\.fc1\.weight",
        ),
        rows=TORCHVISION_ROWS,
        describe=torchvision_describe,
        ignored=IGNORED,
        architecture="EfficientNet",
    ),
)
