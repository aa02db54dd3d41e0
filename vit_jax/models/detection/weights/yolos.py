"""Names of transformers' `YolosForObjectDetection`, read and written."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.detection.weights import shared
from vit_jax.models.fields import pair
from vit_jax.models.vit.weights import hugging_face
from vit_jax.weights import backbones, formats
from vit_jax.weights.ecosystems.hugging_face_writing import activation_name, labels_of
from vit_jax.weights.mapping import SAME, Row, Tensors, linear

_PREFIX = "vit."
_TABLE, _TOKENS = "vit.embeddings.position_embeddings", "vit.embeddings.detection_tokens"
_OWN, _MID = "vit.embeddings.detection_positions", "vit.encoder.mid_position_embeddings"
_HEADS = {"class_head": "class_labels_classifier", "box_head": "bbox_predictor"}
_TOKEN_AXES, _MID_AXES = "1, tokens, width", "blocks, 1, tokens, width"

ROWS = (
    *backbones.under(hugging_face.ROWS, _PREFIX),
    Row("det_tokens", _TOKENS, SAME),
    Row("det_positions", _OWN, SAME),
    Row("mid_positions_{i}", f"{_MID}.{{i}}", SAME),
    *(
        row
        for ours, theirs in _HEADS.items()
        for row in linear(f"{ours}/layers_{{i}}", f"{theirs}.layers.{{i}}")
    ),
)


def normalize_names(tensors: Tensors) -> Tensors:
    """Return the tensors with detection tokens apart from the table of positions.

    The tables behind the blocks become one each, with detection tokens in front of the patches.
    """
    tokens, table = tensors.get(_TOKENS), tensors.get(_TABLE)
    if tokens is None or table is None or tokens.ndim != 3 or table.ndim != 3 or _OWN in tensors:
        return tensors
    count = tokens.shape[1]
    rest = {name: array for name, array in tensors.items() if name != _MID}
    rest |= {_TABLE: table[:, :-count], _OWN: table[:, -count:]}
    if (mid := tensors.get(_MID)) is not None:
        formats.axes_of(tensors, _MID, _MID_AXES)
        for i, one in enumerate(mid):
            parts = [one[:, :1], one[:, -count:], one[:, 1:-count]]
            rest[f"{_MID}.{i}"] = np.concatenate(parts, axis=1)
    return rest


def finish(tensors: dict[str, np.ndarray], fields: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the tensors as transformers has them, which reverses `normalize_names`."""
    count = fields["queries"]
    mids = [tensors[f"{_MID}.{i}"] for i in range(sum(n.startswith(_MID) for n in tensors))]
    tensors = {name: x for name, x in tensors.items() if not name.startswith(_MID)}
    tensors[_TABLE] = np.concatenate([tensors[_TABLE], tensors.pop(_OWN)], axis=1)
    if mids:
        parts = [(x[:, :1], x[:, 1 + count :], x[:, 1 : 1 + count]) for x in mids]
        tensors[_MID] = np.stack([np.concatenate(part, axis=1) for part in parts])
    return tensors


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file; expects normalized names."""
    from vit_jax.weights.convert import model_name  # which imports this module

    config = dict(config or {})
    if hints.origin not in (None, "yolos"):
        raise UserError(f"--origin={hints.origin} does not fit this file; use --origin=yolos")
    width = formats.axes_of(tensors, _TOKENS, _TOKEN_AXES)[2]
    of_vit = {name: x for name, x in config.items() if name not in ("model_type", "preprocessor")}
    heads = hints.heads or (None if config or width % 64 else width // 64)
    asked = dataclasses.replace(hints, origin="deit", heads=heads)
    backbone = hugging_face.describe(
        backbones.without_prefix(tensors, _PREFIX), of_vit, asked
    ).fields
    name = model_name(backbone).replace("ViT-", "DeiT-")  # of the same sizes, by which it began
    classes = shared.classes_of(tensors, f"{_HEADS['class_head']}.layers.2.weight")
    fields = {
        "num_classes": classes,
        **backbones.backbone_of({**backbone, "init_scheme": "trunc02"}, name),
        "queries": tensors[_TOKENS].shape[1],
        "mid_positions": f"{_MID}.0" in tensors,
    }
    preprocessing = {**shared.preprocessing_of(config), "size": pair(fields["image_size"])}
    names = shared.class_names_of(config, classes)
    return formats.ModelSpec(fields, preprocessing, "yolos", names)


def config(fields: Mapping[str, Any], preprocessing: Preprocessing, class_names) -> dict[str, Any]:
    """Return transformers' `config.json`; UserError for a ViT that it does not support."""
    backbone = backbones.fields_of_backbone(fields)
    needed = {
        "positions": "learned",
        "pool": "cls",
        "registers": 0,
        "pos_on_cls": True,
        "norm_order": "pre",
        "norm_type": "layer",
        "mlp": "plain",
        "qk_norm": False,
        "layer_scale": None,
        "parallel": False,
        "embed_norm": False,
        "patch_norm": False,
        "final_norm": True,
        "pool_norm": "before",
    }
    formats.need("transformers' config.json", backbone, needed, " of the backbone of a YOLOS")
    return {
        "model_type": "yolos",
        "architectures": ["YolosForObjectDetection"],
        **labels_of(class_names),
        "image_size": list(pair(fields["image_size"])),
        "patch_size": backbone["patch_size"],
        "num_channels": fields["in_channels"],
        "hidden_size": backbone["width"],
        "num_hidden_layers": backbone["depth"],
        "num_attention_heads": backbone["heads"],
        "intermediate_size": backbone["mlp_width"],
        "hidden_act": activation_name(backbone["activation"]),
        "qkv_bias": backbone["qkv_bias"],
        "layer_norm_eps": backbone["norm_eps"],
        "num_detection_tokens": fields["queries"],
        "use_mid_position_embeddings": fields["mid_positions"],
    }


FORMAT = formats.CheckpointFormat(
    name="huggingface",
    model_types=("yolos",),
    signature=(r"vit\.embeddings\.detection_tokens", r"bbox_predictor\.layers\.0\.weight"),
    rows=ROWS,
    describe=describe,
    ignored={rf"vit\.{name}": why for name, why in hugging_face.IGNORED.items()},
    normalize_names=normalize_names,
    finish=finish,
    config=config,
    preprocessor=functools.partial(shared.processor_of, kind="Yolos"),
    architecture="YOLOS",
)
