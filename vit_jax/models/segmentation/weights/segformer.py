"""Names of SegFormer: of transformers' segmenter, and of the authors."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.pvt_v2.weights import hugging_face, timm
from vit_jax.models.pvt_v2.weights.fields import rows
from vit_jax.models.registry import list_models, model_fields
from vit_jax.models.segmentation.module import Segmentation
from vit_jax.weights import formats
from vit_jax.weights.backbones import backbone_of, fields_of_backbone, under, without_head
from vit_jax.weights.ecosystems import convolutions, processors
from vit_jax.weights.ecosystems.convolutions import CONV_AXES, POINTWISE, batch_norm
from vit_jax.weights.mapping import CONV, Row, Tensors, linear

HEAD = "decode_head"
_FUSE = "linear_fuse"

ORIGINAL_ORIGINS = {
    "segformer": formats.Origin(
        {"norm_eps": 1e-6, "embed_norm_eps": 1e-5, "activation": "gelu"},
        {**formats.IMAGENET, "interpolation": "bilinear", "crop": 1.0},
        "SegFormer's repository: mix_transformer.py and local_configs",
    )
}


def _head(inputs: str, fuse: str, norm: str, classifier: str) -> tuple[Row, ...]:
    return (
        *linear("head/inputs_{i}", f"{HEAD}.{inputs}.proj"),
        Row("head/fuse/conv/kernel", f"{HEAD}.{fuse}.weight", CONV),
        *batch_norm("head/fuse/norm", f"{HEAD}.{norm}"),
        *linear("head/classifier", f"{HEAD}.{classifier}", POINTWISE),
    )


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of transformers' segmenter; expects normalized names."""
    return _with_head(hugging_face.describe_segformer(tensors, config, hints), tensors, config)


def describe_original(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of the authors' files; expects normalized names."""
    origin_name, origin = formats.choose_origin(hints, ORIGINAL_ORIGINS)
    size = convolutions.size_of_images(hints, None, 512)
    fields = timm.read_fields(tensors, timm.NAMES, hints, size)
    spec = formats.ModelSpec({**fields, **origin.fields}, dict(origin.preprocessing), origin_name)
    return _with_head(spec, tensors, None)


def _with_head(
    spec: formats.ModelSpec, tensors: Tensors, config: Mapping[str, Any] | None
) -> formats.ModelSpec:
    """Return the spec of the whole from that of the backbone."""
    classifier = f"{HEAD}.classifier.weight"
    classes, width, *_ = formats.axes_of(tensors, classifier, CONV_AXES)
    fields = {
        "num_classes": classes,
        **backbone_of(spec.fields, backbone_name(spec.fields)),
        "decoder": "mlp",
        "decoder_width": width,
    }
    names = convolutions.transformers_names(config or {}, classes)
    return formats.ModelSpec(fields, spec.preprocessing, spec.origin, names, spec.notes)


def backbone_name(fields: Mapping[str, Any]) -> str:
    """Return the name of the MiT of these widths and depths; of the smallest if there is none."""
    for name in list_models("MiT-*"):
        known = model_fields(name)
        if all(known[key] == fields[key] for key in ("widths", "depths", "mlp_ratios")):
            return name
    return "MiT-B0"


def normalize(tensors: Tensors) -> Tensors:
    """Return the names of files, also of what transformers has in memory."""
    return {
        name.replace(f"{HEAD}.linear_projections.", f"{HEAD}.linear_c."): array
        for name, array in hugging_face.normalize_segformer(tensors).items()
    }


def normalize_original(tensors: Tensors) -> Tensors:
    """Return timm's names of the backbone, and stages of the head counted from 0 as above."""
    found = {name.removeprefix("backbone."): array for name, array in tensors.items()}
    for i in range(4):
        theirs, ours = f"{HEAD}.linear_c{i + 1}.", f"{HEAD}.linear_c.{i}."
        found = {name.replace(theirs, ours): array for name, array in found.items()}
    last = (f"{HEAD}.linear_pred.", f"{HEAD}.classifier.")
    return timm.normalize_original({name.replace(*last): x for name, x in found.items()})


def config(fields: Mapping[str, Any], preprocessing: Preprocessing, class_names) -> dict[str, Any]:
    """Return transformers' `config.json`; UserError for what its SegFormer has not."""
    _check(fields)
    backbone = fields_of_backbone(fields)
    written = hugging_face.segformer_config(backbone, preprocessing, class_names)
    return {
        **written,
        "architectures": ["SegformerForSemanticSegmentation"],
        "decoder_hidden_size": fields["decoder_width"] or _default_width(),
        "classifier_dropout_prob": fields["decoder_dropout"],
        "semantic_loss_ignore_index": 255,
    }


def _check(fields: Mapping[str, Any]) -> None:
    needed = {"decoder": "mlp", "norm_maps": False, "auxiliary_head": False}
    formats.need("transformers", fields, needed, " of a SegFormer")
    name = fields["backbone_name"]
    if "reductions" not in model_fields(name):
        raise UserError(
            f"transformers' SegFormer has a MiT as backbone, not {name}; keep the run folder"
        )
    if not hugging_face.is_segformer(backbone := fields_of_backbone(fields)):
        raise UserError(
            "transformers' SegFormer has an epsilon of 1e-5 in all norms, qkv_bias and no linear "
            f"attention; here norm_eps = {backbone['norm_eps']}, embed_norm_eps = "
            f"{backbone['embed_norm_eps']}; keep the run folder"
        )


def _default_width() -> int:
    from vit_jax.models.segmentation.decoders import MlpDecoder

    return MlpDecoder.width


def finish(tensors: dict[str, np.ndarray], fields: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the names of transformers' segmenter, with the counters of its BatchNorm."""
    named = {
        name if name.startswith(f"{HEAD}.") else f"segformer.{name}": array
        for name, array in tensors.items()
    }
    return convolutions.with_counters(named, fields)


def writes(fields: Mapping[str, Any]) -> bool:
    """Return whether a model is a SegFormer, in any field."""
    return fields["decoder"] == "mlp"


FORMAT = formats.CheckpointFormat(
    name="huggingface",
    signature=(
        r"encoder\.block\.0\.0\.mlp\.dwconv\.dwconv\.weight",
        rf"{HEAD}\.{_FUSE}\.weight",
    ),
    rows=(
        *under(without_head(rows(hugging_face.SEGFORMER_NAMES))),
        *_head("linear_c.{i}", _FUSE, "batch_norm", "classifier"),
    ),
    describe=describe,
    ignored=convolutions.IGNORED,
    normalize_names=normalize,
    finish=finish,
    config=config,
    preprocessor=processors.write,
    writes=writes,
    model_types=("segformer",),
    architecture=Segmentation.__name__,
)

ORIGINAL = formats.CheckpointFormat(
    name="segformer",
    signature=(
        r"stages\.0\.blocks\.0\.mlp\.dwconv\.weight",
        rf"{HEAD}\.{_FUSE}\.conv\.weight",
    ),
    rows=(
        *under(without_head(rows(timm.NAMES))),
        *_head("linear_c.{i}", f"{_FUSE}.conv", f"{_FUSE}.bn", "classifier"),
    ),
    describe=describe_original,
    ignored={
        **convolutions.IGNORED,
        rf"{HEAD}\.conv_seg\..*": "mmsegmentation's classifier, which SegFormer does not use",
    },
    normalize_names=normalize_original,
    architecture=Segmentation.__name__,
)
