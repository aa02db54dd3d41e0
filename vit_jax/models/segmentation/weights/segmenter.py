"""Names of Segmenter's authors: timm's ViT as encoder, and a linear or a mask decoder."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from vit_jax.models.segmentation.module import Segmentation
from vit_jax.models.vit.weights import timm
from vit_jax.weights import formats
from vit_jax.weights.backbones import backbone_of, under, without_head, without_prefix
from vit_jax.weights.mapping import (
    OUT_KERNEL,
    QKV_BIAS,
    QKV_KERNEL,
    SAME,
    Row,
    Tensors,
    layer_norm,
    linear,
)

_ENCODER, _DECODER = "encoder.", "decoder."
_OF_VIT = {"norm_eps": 1e-5, "pos_resize": "torch-bilinear"}
_PREPROCESSING = {"interpolation": "bilinear", "crop": 1.0}
ORIGINS = {
    "segmenter": formats.Origin(
        _OF_VIT,
        {**formats.HALF, **_PREPROCESSING},
        "Segmenter's repository: segm/model and segm/config.yml, of a ViT",
    ),
    "segmenter_deit": formats.Origin(
        _OF_VIT,
        {**formats.IMAGENET, **_PREPROCESSING},
        "the same, of a DeiT, which has a distillation token",
    ),
}

_BLOCK, _THEIRS = "head/blocks_{i}", "decoder.blocks.{i}"
ROWS = (
    *under(without_head(timm.ROWS), _ENCODER),
    *linear("head/classifier", "decoder.head"),
    *linear("head/input", "decoder.proj_dec"),
    Row("head/class_tokens", "decoder.cls_emb", SAME),
    *layer_norm(f"{_BLOCK}/norm1", f"{_THEIRS}.norm1"),
    Row(f"{_BLOCK}/attn/qkv/kernel", f"{_THEIRS}.attn.qkv.weight", QKV_KERNEL),
    Row(f"{_BLOCK}/attn/qkv/bias", f"{_THEIRS}.attn.qkv.bias", QKV_BIAS),
    *linear(f"{_BLOCK}/attn/out", f"{_THEIRS}.attn.proj", OUT_KERNEL),
    *layer_norm(f"{_BLOCK}/norm2", f"{_THEIRS}.norm2"),
    *linear(f"{_BLOCK}/mlp/fc1", f"{_THEIRS}.mlp.fc1"),
    *linear(f"{_BLOCK}/mlp/fc2", f"{_THEIRS}.mlp.fc2"),
    *layer_norm("head/norm", "decoder.decoder_norm"),
    Row("head/patch_projection/kernel", "decoder.proj_patch", SAME),  # no layer: (in, out)
    Row("head/class_projection/kernel", "decoder.proj_classes", SAME),
    *layer_norm("head/mask_norm", "decoder.mask_norm"),
)


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file of the authors."""
    from vit_jax.weights.convert import model_name  # which imports this module

    is_deit = f"{_ENCODER}dist_token" in tensors
    origin_name, origin = formats.choose_origin(
        hints, ORIGINS, "segmenter_deit" if is_deit else "segmenter"
    )
    encoder = without_prefix(tensors, _ENCODER)
    width = formats.axes_of(encoder, "patch_embed.proj.weight", "out, in, height, width")[0]
    heads = hints.heads or max(1, width // 64)
    named = "deit" if is_deit else "timm"
    found = timm.describe(encoder, None, dataclasses.replace(hints, heads=heads, origin=named))
    backbone = {**found.fields, **origin.fields, "pool": "cls", "num_classes": 0}
    fields = {
        **backbone_of(backbone, model_name(backbone)),
        **_decoder(tensors, width),
    }
    return formats.ModelSpec(fields, dict(origin.preprocessing), origin_name)


def _decoder(tensors: Tensors, encoder_width: int) -> dict[str, Any]:
    """Return the fields of the decoder."""
    if f"{_DECODER}cls_emb" not in tensors:
        classes = formats.axes_of(tensors, f"{_DECODER}head.weight", "out, in")[0]
        return {"num_classes": classes, "decoder": "linear"}
    _, classes, width = formats.axes_of(tensors, f"{_DECODER}cls_emb", "1, classes, width")
    return {
        "num_classes": classes,
        "decoder": "mask",
        "decoder_width": None if width == encoder_width else width,
        "decoder_depth": formats.count_blocks(tensors, r"decoder\.blocks\.(\d+)\.norm1\.weight"),
    }


FORMAT = formats.CheckpointFormat(
    name="segmenter",
    signature=(
        r"encoder\.blocks\.0\.attn\.qkv\.weight",
        r"decoder\.(cls_emb|head\.weight)",
    ),
    rows=ROWS,
    describe=describe,
    ignored={r"encoder\.head(_dist)?\..*": "the classifier of the encoder's pre-training"},
    architecture=Segmentation.__name__,
)
