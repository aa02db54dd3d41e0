"""Names of transformers' `UperNetForSemanticSegmentation`, on Swin and on ConvNeXt.

Its backbones norm each map by a norm of their own; the last of these is that of the backbone here.
transformers' Swin has one more norm, which nothing reads.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.convnext.weights import hugging_face as convnext
from vit_jax.models.fields import pair
from vit_jax.models.registry import get_preset
from vit_jax.models.segmentation.decoders import POOLED_SIDES
from vit_jax.models.segmentation.module import Segmentation
from vit_jax.models.swin.weights import hugging_face as swin
from vit_jax.weights import formats
from vit_jax.weights.backbones import backbone_of, fields_of_backbone, under, without_prefix
from vit_jax.weights.ecosystems import convolutions, processors
from vit_jax.weights.ecosystems.convolutions import POINTWISE, batch_norm
from vit_jax.weights.ecosystems.hugging_face_writing import labels_of
from vit_jax.weights.mapping import CONV, Row, Tensors, layer_norm, linear

_BACKBONE, _NORMS = "backbone.", "hidden_states_norms."
_STAGES = 4
_UNREAD = "backbone.swin.layernorm"
_SIZE = 512  # pixels of the images of ADE20K
_USUAL = {"pool_scales": list(POOLED_SIDES), "auxiliary_num_convs": 1}
_USUAL |= {"auxiliary_concat_input": False}


def _layer(ours: str, theirs: str) -> tuple[Row, ...]:
    """Return the rows of a convolution and its BatchNorm."""
    return (
        Row(f"{ours}/conv/kernel", f"{theirs}.conv.weight", CONV),
        *batch_norm(f"{ours}/norm", f"{theirs}.batch_norm"),
    )


_HEADS = (
    *_layer("head/pooled_{i}", "decode_head.psp_modules.{i}.1"),
    *_layer("head/bottleneck", "decode_head.bottleneck"),
    *_layer("head/lateral_{i}", "decode_head.lateral_convs.{i}"),
    *_layer("head/output_{i}", "decode_head.fpn_convs.{i}"),
    *_layer("head/fuse", "decode_head.fpn_bottleneck"),
    *linear("head/classifier", "decode_head.classifier", POINTWISE),
    *_layer("auxiliary/conv", "auxiliary_head.convs.0"),
    *linear("auxiliary/classifier", "auxiliary_head.classifier", POINTWISE),
)


def _rows(backbone: formats.CheckpointFormat) -> tuple[Row, ...]:
    own = [row for row in backbone.rows if not row.ours.startswith(("norm/", "head/"))]
    norms = [*(f"map_norms_{i}" for i in range(_STAGES - 1)), "backbone/norm"]
    return (
        *under(own, _BACKBONE),
        *(
            row
            for i, ours in enumerate(norms)
            for row in layer_norm(ours, f"{_BACKBONE}{_NORMS}stage{i + 1}")
        ),
        *_HEADS,
    )


def describe(
    tensors: Tensors,
    config: Mapping[str, Any] | None,
    hints: formats.Hints,
    backbone: formats.CheckpointFormat,
) -> formats.ModelSpec:
    """Return the spec of a file; expects normalized names."""
    from vit_jax.weights.convert import model_name  # which imports this module

    config = config or {}
    for name, needed in _USUAL.items():
        if (value := config.get(name, needed)) != needed and list(value) != needed:
            raise UserError(f"config.json: {name} = {value!r} is not supported, only {needed!r}")
    inner = dict(formats.configured_section(config, "backbone_config")) if config else {}
    written = processors.read(config.get("preprocessor") or {}, (1, 1), "segformer")
    size = hints.image_size or written.get("size") or (_SIZE, _SIZE)
    asked = formats.Hints(heads=hints.heads, image_size=size)
    own = without_prefix(tensors, _BACKBONE)
    found = backbone.describe(
        {name: array for name, array in own.items() if not name.startswith(_NORMS)}, inner, asked
    )
    if len(found.fields["depths"]) != _STAGES:
        raise UserError(
            f"the backbone has {len(found.fields['depths'])} stages, but UPerNet's has {_STAGES} "
            "here"
        )
    classes, width = formats.axes_of(
        tensors, "decode_head.classifier.weight", convolutions.CONV_AXES
    )[:2]
    fields = {**found.fields, "num_classes": 0, "image_size": formats.side_or_pair(tuple(size))}
    auxiliary = "auxiliary_head.classifier.weight"
    spec = {
        "num_classes": classes,
        **backbone_of(fields, model_name(fields, backbone.architecture)),
        "decoder": "upernet",
        "decoder_width": width,
        "norm_maps": True,
        "auxiliary_head": auxiliary in tensors,
    }
    if auxiliary in tensors:
        spec["auxiliary_width"] = formats.axes_of(tensors, auxiliary, convolutions.CONV_AXES)[1]
    names = convolutions.transformers_names(config, classes)
    usual = {**formats.IMAGENET, "interpolation": "bilinear", "crop": 1.0, "resize": "squash"}
    preprocessing = {**usual, **written, "size": pair(fields["image_size"])}
    return formats.ModelSpec(spec, preprocessing, "upernet", names, found.notes)


def normalize(tensors: Tensors, of_backbone: Callable[[Tensors], Tensors], other: str) -> Tensors:
    """Return the tensors with those of the backbone by the names of its own format.

    other: beginning of the names that the other backbone alone has, whose file is left as it is.
    """
    if any(name.startswith(other) for name in tensors):
        return tensors
    own = of_backbone(without_prefix(tensors, _BACKBONE))
    rest = {name: array for name, array in tensors.items() if not name.startswith(_BACKBONE)}
    return {**{_BACKBONE + name: array for name, array in own.items()}, **rest}


def finish(
    tensors: dict[str, np.ndarray], fields: Mapping[str, Any], backbone: formats.CheckpointFormat
) -> dict[str, np.ndarray]:
    """Return transformers' names, with the counters of BatchNorms and the norm of its Swin."""
    inner = {**fields_of_backbone(fields), "num_classes": 0}
    own = backbone.finish(without_prefix(tensors, _BACKBONE), inner)
    prefix = {"Swin": "swin.", "ConvNeXt": "convnext."}[backbone.architecture]
    named = {_BACKBONE + name.removeprefix(prefix): array for name, array in own.items()}
    named |= {name: array for name, array in tensors.items() if not name.startswith(_BACKBONE)}
    if backbone.architecture == "Swin":
        last = named[f"{_BACKBONE}{_NORMS}stage{_STAGES}.weight"]
        named[f"{_UNREAD}.weight"] = np.ones_like(last)
        named[f"{_UNREAD}.bias"] = np.zeros_like(last)
    return convolutions.with_counters(named, fields)


def config(
    fields: Mapping[str, Any],
    preprocessing: Preprocessing,
    class_names: Any,
    backbone: formats.CheckpointFormat,
) -> dict[str, Any]:
    """Return transformers' `config.json`; UserError for what its UPerNet has not."""
    needed = {"norm_maps": True, "auxiliary_head": True}
    formats.need("transformers", fields, needed, " of a UPerNet")
    own = {**fields_of_backbone(fields), "num_classes": 0}
    inner = backbone.config(own, preprocessing, ())
    inner = {name: value for name, value in inner.items() if name not in ("id2label", "label2id")}
    inner["architectures"] = [inner["architectures"][0].replace("Model", "Backbone")]
    widths = own.get("widths") or [own["width"] * 2**i for i in range(_STAGES)]
    return {
        "model_type": "upernet",
        "architectures": ["UperNetForSemanticSegmentation"],
        **labels_of(class_names),
        "backbone_config": {**inner, "out_features": [f"stage{i + 1}" for i in range(_STAGES)]},
        "hidden_size": fields["decoder_width"] or 512,
        **_USUAL,
        "use_auxiliary_head": True,
        "auxiliary_loss_weight": 0.4,
        "auxiliary_in_channels": widths[-2],
        "auxiliary_channels": fields["auxiliary_width"],
        "loss_ignore_index": 255,
        "dtype": "float32",
    }


def _writes(fields: Mapping[str, Any], architecture: str) -> bool:
    name = fields["backbone_name"]
    return fields["decoder"] == "upernet" and (
        get_preset(name).architecture.__name__ == architecture
    )


def _format(backbone: formats.CheckpointFormat, mark: str, other: str) -> formats.CheckpointFormat:
    """Return the format on a backbone, told by a name of it from the other one."""
    ignored = {f"{_BACKBONE}{name}": why for name, why in backbone.ignored.items()}
    return formats.CheckpointFormat(
        name="huggingface",
        signature=(r"decode_head\.psp_modules\.0\.1\.conv\.weight", mark),
        rows=_rows(backbone),
        describe=functools.partial(describe, backbone=backbone),
        ignored={
            **convolutions.IGNORED,
            **ignored,
            r"backbone\.(swin\.)?layernorm\..*": "a norm of transformers' Swin that nothing reads",
        },
        normalize_names=functools.partial(
            normalize, of_backbone=backbone.normalize_names, other=other
        ),
        finish=functools.partial(finish, backbone=backbone),
        config=functools.partial(config, backbone=backbone),
        preprocessor=processors.write,
        writes=functools.partial(_writes, architecture=backbone.architecture),
        model_types=("upernet",),
        architecture=Segmentation.__name__,
    )


FORMATS = (
    _format(
        swin.FORMATS[1],
        r"backbone\.encoder\.layers\.0\.blocks\.0\.attention\.self\.query\.weight",
        "backbone.encoder.stages.",
    ),
    _format(
        convnext.FORMAT,
        r"backbone\.encoder\.stages\.0\.layers\.0\.dwconv\.weight",
        "backbone.encoder.layers.",
    ),
)
