"""Names of transformers' DPT-Hybrid: its `dpt` on the ResNet of its `bit`, read and written."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.depth.weights import transformers
from vit_jax.models.depth.weights.fields import blocks_of, finished, rows
from vit_jax.models.fields import pair
from vit_jax.models.hybrid import weights as hybrids
from vit_jax.models.hybrid.bit_resnet import stride_of
from vit_jax.models.vit.weights import hugging_face
from vit_jax.weights import formats
from vit_jax.weights.backbones import fields_of_backbone, under, without_prefix
from vit_jax.weights.ecosystems import hugging_face_writing
from vit_jax.weights.mapping import CONV, Row, Tensors, layer_norm, linear

_PREFIX = "dpt."
_BIT = "embeddings.backbone.bit"
_STAGES = (0, 1)  # of the ResNet, in place of the first two blocks
# Entries of backbone_config with one value in all models here.
_BACKBONE = {
    "model_type": "bit",
    "layer_type": "bottleneck",
    "global_padding": "same",
    "embedding_dynamic_padding": True,
    "width_factor": 1,
    "hidden_act": "relu",
}

ROWS = (
    Row("patch_embed/conv_root/kernel", f"{_BIT}.embedder.convolution.weight", CONV),
    *layer_norm("patch_embed/norm_root", f"{_BIT}.embedder.norm"),
    *hybrids.timm_unit(
        "patch_embed/stages_{i}/units_{j}", f"{_BIT}.encoder.stages.{{i}}.layers.{{j}}"
    ),
    *linear("patch_embed", "embeddings.projection", CONV),
    *(row for row in hugging_face.ROWS if not row.ours.startswith("patch_embed/")),
)


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file of transformers' DPT-Hybrid."""
    config = dict(config or {})
    transformers.check({**config, "is_hybrid": False}, "dpt")
    inner = formats.configured_section(config, "backbone_config") if config else {}
    for name, needed in _BACKBONE.items():
        value = inner.get(name, needed)
        if value != needed and str(value).lower() != needed:
            raise UserError(
                f"config.json: backbone_config has {name} = {value!r}, which is not supported; "
                f"use {needed!r}"
            )
    _, origin = formats.choose_origin(hints, {"dpt": transformers.ORIGINS["dpt"]})
    of_vit = without_prefix(tensors, _PREFIX)
    stem_width, channels = formats.axes_of(
        of_vit, f"{_BIT}.embedder.convolution.weight", "out, in, height, width"
    )[:2]
    stages = rf"{re.escape(_BIT)}\.encoder\.stages\."
    units = hybrids.units_of(of_vit, stages, r"\.layers\.", r"\.conv1\.weight")
    width = formats.axes_of(of_vit, "embeddings.projection.weight", "out, in, height, width")[0]
    stride = stride_of(units)
    patches = hybrids.patches_of_zeros(width, channels, stride, stride)
    as_vit = {**of_vit, transformers.PATCHES: patches}
    backbone = transformers.vit_of_dpt(as_vit, config, hints, origin)
    backbone.fields.update({**hybrids.stem_fields(units, stem_width), **hybrids.TIMM_FIELDS})
    if (groups := formats.configured_number(inner, "num_groups")) is not None:
        backbone.fields["stem_groups"] = groups
    blocks = blocks_of("dpt", backbone.fields["depth"], config.get("backbone_out_indices"))
    more = {"blocks": blocks[len(_STAGES) :], "stages": _STAGES, "readout": "project"}
    return transformers.spec_of_dpt(
        origin, backbone, tensors, config, more, (stride, stride), "HybridViT"
    )


def config(fields: Mapping[str, Any], preprocessing: Preprocessing, class_names) -> dict[str, Any]:
    """Return transformers' `config.json`; UserError for unsupported fields."""
    backbone = fields_of_backbone(fields)
    units, stem = backbone["stem_units"], backbone["stem_width"]
    formats.need("transformers", fields, {"stages": _STAGES, "readout": "project"}, " of a DPT")
    formats.need("transformers", backbone, hybrids.TIMM_FIELDS, " of a DPT's ResNet")
    if len(units) != 3 or backbone["patch_size"] != stride_of(units):
        raise UserError(
            "transformers has DPT-Hybrid on a ResNet of three stages whose every place is a patch, "
            f"of 16 pixels; here stem_units = {units} and patch_size = {backbone['patch_size']}; "
            "keep the run folder"
        )
    written = transformers.dpt_config(fields, preprocessing, class_names)
    height, width = pair(fields["image_size"])
    grid = [height // stride_of(units), width // stride_of(units)]
    return {
        **written,
        "is_hybrid": True,
        # transformers skips as many blocks as there are stages.
        "backbone_out_indices": [*_STAGES, *fields["blocks"]],
        "neck_ignore_stages": list(_STAGES),
        "backbone_featmap_shape": [1, 16 * stem, *grid],
        "backbone_config": {
            **_BACKBONE,
            "num_channels": fields["in_channels"],
            "embedding_size": stem,
            "hidden_sizes": [4 * stem * 2**i for i in range(len(units))],
            "depths": list(units),
            "num_groups": backbone["stem_groups"],
            "out_features": [f"stage{i + 1}" for i in range(len(units))],
        },
    }


def finish(tensors: dict[str, np.ndarray], fields: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the tensors as transformers has them."""
    return finished(hugging_face_writing.finish, _PREFIX, tensors, fields)


FORMAT = formats.CheckpointFormat(
    name="huggingface",
    signature=(
        r"neck\.reassemble_stage\.layers\.2\.projection\.weight",
        r"head\.head\.2\.weight",
        rf"dpt\.{re.escape(_BIT)}\.embedder\.convolution\.weight",
    ),
    rows=(*under(ROWS, _PREFIX), *rows(transformers.DPT_NAMES)),
    describe=describe,
    ignored=transformers.DPT.ignored,
    finish=finish,
    config=config,
    preprocessor=transformers.write_processor,
    writes=lambda fields: bool(fields["stages"]),
    architecture="DPT",
)
