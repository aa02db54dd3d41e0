"""Names of the authors of DPT and of Depth Anything V2, which are read."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from vit_jax.models.depth.weights import fields as shared
from vit_jax.models.depth.weights.transformers import ORIGINS as OF_TRANSFORMERS
from vit_jax.models.vit.weights import timm
from vit_jax.weights import formats
from vit_jax.weights.backbones import under, without_prefix
from vit_jax.weights.mapping import Tensors


def _fusion(scratch: str) -> dict[str, Any]:
    """Return the names of the fusion, which is counted from the finest map, from 1."""
    return {
        "common": lambda k: f"{scratch}.layer{k + 1}_rn",
        "unit": lambda k, n, c: f"{scratch}.refinenet{k + 1}.resConfUnit{n}.conv{c}",
        "out": lambda k: f"{scratch}.refinenet{k + 1}.out_conv",
    }


DPT_NAMES = {
    **_fusion("scratch"),
    "readout": lambda k: f"pretrained.act_postprocess{k + 1}.0.project.0",
    "project": lambda k: f"pretrained.act_postprocess{k + 1}.3",
    "resize": lambda k: f"pretrained.act_postprocess{k + 1}.4",
    "head": tuple(f"scratch.output_conv.{number}" for number in (0, 2, 4)),
}
DEPTH_ANYTHING_NAMES = {
    **_fusion("depth_head.scratch"),
    "readout": None,
    "project": lambda k: f"depth_head.projects.{k}",
    "resize": lambda k: f"depth_head.resize_layers.{k}",
    "head": (
        "depth_head.scratch.output_conv1",
        "depth_head.scratch.output_conv2.0",
        "depth_head.scratch.output_conv2.2",
    ),
}
_DPT_PREFIX, _DEPTH_ANYTHING_PREFIX = "pretrained.model.", "pretrained."

DPT_ORIGINS = {
    "dpt": formats.Origin(
        {},
        OF_TRANSFORMERS["dpt"].preprocessing,
        "isl-org/DPT: run_monodepth.py, models dpt_large and dpt_base",
    )
}
_DEPTH_ANYTHING = OF_TRANSFORMERS["depth_anything"].preprocessing
# All have the same tensors; the metric ones are said by --origin.
DEPTH_ANYTHING_ORIGINS = {
    "depth_anything": formats.Origin(
        {"max_depth": None}, _DEPTH_ANYTHING, "DepthAnything/Depth-Anything-V2: run.py"
    ),
    "depth_anything_indoor": formats.Origin(
        {"max_depth": 20.0}, _DEPTH_ANYTHING, "the same, metric_depth, trained on Hypersim"
    ),
    "depth_anything_outdoor": formats.Origin(
        {"max_depth": 80.0}, _DEPTH_ANYTHING, "the same, metric_depth, trained on Virtual KITTI"
    ),
}


def describe_dpt(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file of DPT's authors."""
    name, origin = formats.choose_origin(hints, DPT_ORIGINS)
    backbone = _backbone(tensors, _DPT_PREFIX, hints, "timm")
    backbone.fields["pos_resize"] = "torch-bilinear"
    reads = f"{DPT_NAMES['readout'](0)}.weight" in tensors
    more = {
        "blocks": shared.blocks_of("dpt", backbone.fields["depth"], None),
        "readout": "project" if reads else "ignore",
    }
    return shared.spec(backbone, tensors, DPT_NAMES, more, origin.preprocessing, name)


def describe_depth_anything(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file of Depth Anything V2's authors; relative unless hints say more."""
    name, origin = formats.choose_origin(hints, DEPTH_ANYTHING_ORIGINS, "depth_anything")
    backbone = _backbone(tensors, _DEPTH_ANYTHING_PREFIX, hints, "dinov2")
    more = {
        "blocks": shared.blocks_of("depth_anything", backbone.fields["depth"], None),
        "readout": "ignore",
        "normed": True,
        **origin.fields,
    }
    return shared.spec(backbone, tensors, DEPTH_ANYTHING_NAMES, more, origin.preprocessing, name)


def _backbone(
    tensors: Tensors, prefix: str, hints: formats.Hints, origin: str
) -> formats.ModelSpec:
    own = timm.normalize_names(without_prefix(tensors, prefix))
    own = {name: array for name, array in own.items() if not name.startswith("head.")}
    width = formats.axes_of(own, "patch_embed.proj.weight", "out, in, height, width")[0]
    hints = shared.hints_with_heads(dataclasses.replace(hints, origin=origin), width)
    return timm.describe(own, None, hints)


DPT = formats.CheckpointFormat(
    name="dpt",
    signature=(r"scratch\.refinenet1\.out_conv\.weight", r"scratch\.output_conv\.2\.weight"),
    absent=(r"auxlayer\..*", r"pretrained\.model\.patch_embed\.backbone\..*"),
    rows=(*under(timm.ROWS, _DPT_PREFIX), *shared.rows(DPT_NAMES)),
    describe=describe_dpt,
    ignored={
        r"pretrained\.model\.head\..*": "the classifier that the encoder was trained with",
        **{rf"pretrained\.model\.{name}": why for name, why in timm.FORMAT.ignored.items()},
    },
    architecture="DPT",
)
DEPTH_ANYTHING = formats.CheckpointFormat(
    name="depth_anything",
    signature=(
        r"depth_head\.projects\.0\.weight",
        r"depth_head\.scratch\.output_conv2\.2\.weight",
    ),
    rows=(*under(timm.ROWS, _DEPTH_ANYTHING_PREFIX), *shared.rows(DEPTH_ANYTHING_NAMES)),
    describe=describe_depth_anything,
    ignored={rf"pretrained\.{name}": why for name, why in timm.FORMAT.ignored.items()},
    architecture="DPT",
)
