"""Names of transformers' `DetrForObjectDetection`, read and written, and of DETR's authors."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.detection.weights import shared
from vit_jax.models.fields import pair
from vit_jax.models.resnet import weights as resnet
from vit_jax.weights import backbones, formats
from vit_jax.weights.ecosystems.convolutions import IGNORED, POINTWISE
from vit_jax.weights.ecosystems.hugging_face_writing import labels_of
from vit_jax.weights.mapping import (
    SAME,
    Row,
    Tensors,
    joint_attention,
    layer_norm,
    linear,
    split_attention,
)

_SIZE = 800  # pixels of the shorter side in training; any size is taken
_HEADS = 8  # of all published models
_NO_CLASSIFIER = backbones.without_head(resnet.ROWS)
_TIMM = {(3, 4, 6, 3): "resnet50", (3, 4, 23, 3): "resnet101"}


_LAYER = "model.{0}coder.layers.{{i}}"
_ENCODER, _DECODER = (_LAYER.format(which) for which in ("en", "de"))
ROWS = (
    *backbones.under(_NO_CLASSIFIER, "model.backbone.conv_encoder.model."),
    *linear("input_proj", "model.input_projection", POINTWISE),
    Row("query_positions", "model.query_position_embeddings.weight", SAME),
    *split_attention("encoder_{i}/attn", f"{_ENCODER}.self_attn"),
    *layer_norm("encoder_{i}/norm1", f"{_ENCODER}.self_attn_layer_norm"),
    *linear("encoder_{i}/mlp/fc1", f"{_ENCODER}.fc1"),
    *linear("encoder_{i}/mlp/fc2", f"{_ENCODER}.fc2"),
    *layer_norm("encoder_{i}/norm2", f"{_ENCODER}.final_layer_norm"),
    *split_attention("decoder_{i}/attn", f"{_DECODER}.self_attn"),
    *layer_norm("decoder_{i}/norm1", f"{_DECODER}.self_attn_layer_norm"),
    *split_attention("decoder_{i}/cross", f"{_DECODER}.encoder_attn"),
    *layer_norm("decoder_{i}/norm2", f"{_DECODER}.encoder_attn_layer_norm"),
    *linear("decoder_{i}/mlp/fc1", f"{_DECODER}.fc1"),
    *linear("decoder_{i}/mlp/fc2", f"{_DECODER}.fc2"),
    *layer_norm("decoder_{i}/norm3", f"{_DECODER}.final_layer_norm"),
    *layer_norm("decoder_norm", "model.decoder.layernorm"),
    *linear("class_head/layers_0", "class_labels_classifier"),
    *linear("box_head/layers_{i}", "bbox_predictor.layers.{i}"),
)

_OF_AUTHORS = "transformer.{0}coder.layers.{{i}}"
_ENCODER, _DECODER = (_OF_AUTHORS.format(which) for which in ("en", "de"))
AUTHORS_ROWS = (
    *backbones.under(_NO_CLASSIFIER, "backbone.0.body."),
    *linear("input_proj", "input_proj", POINTWISE),
    Row("query_positions", "query_embed.weight", SAME),
    *joint_attention("encoder_{i}/attn", f"{_ENCODER}.self_attn"),
    *layer_norm("encoder_{i}/norm1", f"{_ENCODER}.norm1"),
    *linear("encoder_{i}/mlp/fc1", f"{_ENCODER}.linear1"),
    *linear("encoder_{i}/mlp/fc2", f"{_ENCODER}.linear2"),
    *layer_norm("encoder_{i}/norm2", f"{_ENCODER}.norm2"),
    *joint_attention("decoder_{i}/attn", f"{_DECODER}.self_attn"),
    *layer_norm("decoder_{i}/norm1", f"{_DECODER}.norm1"),
    *joint_attention("decoder_{i}/cross", f"{_DECODER}.multihead_attn"),
    *layer_norm("decoder_{i}/norm2", f"{_DECODER}.norm2"),
    *linear("decoder_{i}/mlp/fc1", f"{_DECODER}.linear1"),
    *linear("decoder_{i}/mlp/fc2", f"{_DECODER}.linear2"),
    *layer_norm("decoder_{i}/norm3", f"{_DECODER}.norm3"),
    *layer_norm("decoder_norm", "transformer.decoder.norm"),
    *linear("class_head/layers_0", "class_embed"),
    *linear("box_head/layers_{i}", "bbox_embed.layers.{i}"),
)


@dataclasses.dataclass(frozen=True)
class _Names:
    """Names from which sizes are read."""

    backbone: str
    queries: str
    classes: str
    layers: str  # with `{0}` for "en" or "de"
    hidden: str


_TRANSFORMERS = _Names(
    "model.backbone.conv_encoder.model.",
    "model.query_position_embeddings.weight",
    "class_labels_classifier.weight",
    r"model\.{0}coder\.layers\.(\d+)\.fc1\.weight",
    "model.encoder.layers.0.fc1.weight",
)
_AUTHORS = _Names(
    "backbone.0.body.",
    "query_embed.weight",
    "class_embed.weight",
    r"transformer\.{0}coder\.layers\.(\d+)\.linear1\.weight",
    "transformer.encoder.layers.0.linear1.weight",
)


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints, names: _Names
) -> formats.ModelSpec:
    """Return the spec of a file."""
    from vit_jax.weights.convert import model_name  # which imports this module

    config = dict(config or {})
    if hints.origin not in (None, "detr"):
        raise UserError(f"--origin={hints.origin} does not fit this file; use --origin=detr")
    _check(config)
    queries, width = formats.axes_of(tensors, names.queries, "queries, width")
    configured = formats.configured_number(config, "encoder_attention_heads")
    heads = hints.heads or configured or (_HEADS if width == 32 * _HEADS else None)
    asked = dataclasses.replace(hints, origin="torchvision")
    of_backbone = backbones.without_prefix(tensors, names.backbone)
    backbone = resnet.describe(of_backbone, {}, asked).fields
    classes = shared.classes_of(tensors, names.classes)
    size = formats.side_or_pair(hints.image_size) if hints.image_size else _SIZE
    fields = {
        **backbones.backbone_of(backbone, model_name(backbone, "ResNet")),
        "num_classes": classes,
        "image_size": size,
        "queries": queries,
        "width": width,
        "heads": formats.need_heads(dataclasses.replace(hints, heads=heads), configured, width),
        "encoder_depth": formats.count_blocks(tensors, names.layers.format("en")),
        "decoder_depth": formats.count_blocks(tensors, names.layers.format("de")),
        "mlp_width": formats.axes_of(tensors, names.hidden, "out, in")[0],
    }
    preprocessing = {**shared.preprocessing_of(config), "size": pair(size)}
    return formats.ModelSpec(fields, preprocessing, "detr", shared.class_names_of(config, classes))


def _check(config: Mapping[str, Any]) -> None:
    """Raise UserError for a configuration of another computation with the same tensors."""
    needed = {
        "position_embedding_type": "sine",
        "activation_function": "relu",
        "dilation": False,
    }
    for name, value in needed.items():
        if config.get(name, value) not in (value, None):
            raise UserError(
                f"config.json: {name} = {config[name]!r} is not supported yet, only {value!r}"
            )
    heads = [config.get(f"{which}coder_attention_heads") for which in ("en", "de")]
    if heads[0] != heads[1]:
        raise UserError(
            f"config.json: the encoder has {heads[0]} heads and the decoder {heads[1]}, which is "
            "not supported; both have the same number here"
        )


def config(fields: Mapping[str, Any], preprocessing: Preprocessing, class_names) -> dict[str, Any]:
    """Return transformers' `config.json`; UserError for another backbone than it knows by name."""
    backbone = backbones.fields_of_backbone(fields)
    name = _TIMM.get(tuple(backbone.get("depths", ())))
    usual = {"widths": (64, 128, 256, 512), "block": "bottleneck", "small_stem": False}
    if name is None or any(backbone[field] != value for field, value in usual.items()):
        raise UserError(
            "transformers' config.json names the backbone of a DETR, which must be ResNet-50 or "
            f"ResNet-101, and this one has {fields['backbone_name']} "
            f"{dict(fields['backbone_fields'])}; keep the run folder"
        )
    formats.need("transformers' config.json", fields, {"norm_eps": 1e-5}, " of a DETR")
    return {
        "model_type": "detr",
        "architectures": ["DetrForObjectDetection"],
        **labels_of(class_names),
        "use_timm_backbone": True,
        "backbone": name,
        "use_pretrained_backbone": False,
        "num_channels": fields["in_channels"],
        "num_queries": fields["queries"],
        "d_model": fields["width"],
        "encoder_layers": fields["encoder_depth"],
        "decoder_layers": fields["decoder_depth"],
        "encoder_attention_heads": fields["heads"],
        "decoder_attention_heads": fields["heads"],
        "encoder_ffn_dim": fields["mlp_width"],
        "decoder_ffn_dim": fields["mlp_width"],
        "activation_function": fields["activation"],
        "dropout": fields["dropout"],
        "position_embedding_type": "sine",
    }


FORMAT = formats.CheckpointFormat(
    name="huggingface",
    model_types=("detr",),
    signature=(
        r"model\.query_position_embeddings\.weight",
        r"model\.backbone\.conv_encoder\.model\.layer1\.0\.conv1\.weight",
        r"class_labels_classifier\.weight",
    ),
    rows=ROWS,
    describe=functools.partial(describe, names=_TRANSFORMERS),
    ignored=IGNORED,
    config=config,
    preprocessor=functools.partial(shared.processor_of, kind="Detr"),
    architecture="DETR",
)
AUTHORS = formats.CheckpointFormat(
    name="detr",
    signature=(
        r"query_embed\.weight",
        r"transformer\.encoder\.layers\.0\.self_attn\.in_proj_weight",
        r"backbone\.0\.body\.layer1\.0\.conv1\.weight",
    ),
    rows=AUTHORS_ROWS,
    describe=functools.partial(describe, names=_AUTHORS),
    ignored=IGNORED,
    architecture="DETR",
)
