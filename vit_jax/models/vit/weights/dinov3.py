"""Weights of DINOv3's ViTs: those of timm, and the authors' own files.

- No position table: rotary positions, relative to the present grid, of patches only. A file has no
  image size, and any size works as it is.
- Keys have no bias. timm keeps the biases of queries and values as two tensors (`*_qkvb`) or not at
  all; the authors have one of all three and a mask that hides the keys'.
- The authors' periods of the rotary positions are rounded to bfloat16, timm's are exact; outputs
  differ in the third digit. They are two values of the field `rotary`.
- The authors' feature is the class token; timm's models give the mean of the patches.

Sources: Simeoni et al. 2025, "DINOv3", and facebookresearch/dinov3, `vision_transformer.py` and
`hub/backbones.py`; timm 1.0.31, `eva.py`; both by running them.
"""

import re
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from vit_jax.errors import UserError
from vit_jax.models.vit.weights import eva
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import timm_arguments, timm_eva
from vit_jax.weights.mapping import (
    CONV,
    OUT_KERNEL,
    QKV_KERNEL,
    SAME,
    Layout,
    Row,
    Tensors,
    gated,
    layer_norm,
    linear,
)

# One bias of queries, keys and values; here without the keys' third where a mask hides it.
_MASKED_QKV_BIAS = Layout(
    lambda arrays, shape: arrays[0].reshape(3, *shape[1:])[:: 2 if shape[0] == 2 else 1],
    lambda x: [
        (jnp.stack([x[0], jnp.zeros_like(x[0]), x[1]]) if x.shape[0] == 2 else x).reshape(-1)
    ],
)

ORIGINAL_ROWS = (
    *linear("patch_embed", "patch_embed.proj", CONV),
    Row("cls_token", "cls_token", SAME),
    Row("reg_tokens", "storage_tokens", SAME),
    *layer_norm("blocks_{i}/norm1", "blocks.{i}.norm1"),
    Row("blocks_{i}/attn/qkv/kernel", "blocks.{i}.attn.qkv.weight", QKV_KERNEL),
    Row("blocks_{i}/attn/qkv/bias", "blocks.{i}.attn.qkv.bias", _MASKED_QKV_BIAS),
    *linear("blocks_{i}/attn/out", "blocks.{i}.attn.proj", OUT_KERNEL),
    Row("blocks_{i}/ls1/gamma", "blocks.{i}.ls1.gamma", SAME),
    *layer_norm("blocks_{i}/norm2", "blocks.{i}.norm2"),
    *linear("blocks_{i}/mlp/fc1", "blocks.{i}.mlp.fc1"),
    *gated("blocks_{i}/mlp/fc1", "blocks.{i}.mlp.w1", "blocks.{i}.mlp.w2"),
    *linear("blocks_{i}/mlp/fc2", "blocks.{i}.mlp.fc2"),
    *linear("blocks_{i}/mlp/fc2", "blocks.{i}.mlp.w3"),
    Row("blocks_{i}/ls2/gamma", "blocks.{i}.ls2.gamma", SAME),
    *layer_norm("norm", "norm"),
)
IGNORED = {
    r"mask_token": "the token in place of hidden patches, for pre-training",
    r"rope_embed\.periods": "constants of the rotary positions",
    r"blocks\.\d+\.attn\.qkv\.bias_mask": "the mask of the keys' bias, which is not there",
    r"local_cls_norm\..*": "the norm of small crops' class tokens, for pre-training",
}

_FIELDS = {"positions": "none", "norm_eps": 1e-5, "pos_resize": "torch-bicubic-antialias"}
_SATELLITE = {"mean": (0.430, 0.411, 0.296), "std": (0.213, 0.156, 0.143)}
_TIMM = {"crop": 1.0, "interpolation": "bicubic"}
_AUTHORS = {"crop": 1.0, "interpolation": "bilinear", "resize": "squash"}


def _origins(resize: Mapping[str, Any], source: str) -> dict[str, formats.Origin]:
    """Return the origins: web images (LVD-1689M) and satellite images (SAT-493M)."""
    return {
        "dinov3": formats.Origin(_FIELDS, {**formats.IMAGENET, **resize}, source),
        "dinov3-sat493m": formats.Origin(_FIELDS, {**_SATELLITE, **resize}, source),
    }


ORIGINS = _origins(_TIMM, "timm's `vit_*_dinov3`, where no config.json says otherwise")
ORIGINAL_ORIGINS = _origins(_AUTHORS, "facebookresearch/dinov3: README, `make_transform`")
_OF_BOTH = (1024, 4096)  # widths of the models that were trained on either

_IMAGE_SIZE = 256  # of the authors' evaluation and of timm
_NEEDED = {
    "ref_feat_shape": (),
    "rope_rotate_half": (True,),
    "rope_temperature": (100,),
    "rope_type": ("dinov3",),
    "use_abs_pos_emb": (False,),
}


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a DINOv3 of timm."""
    config = config or {}
    fields, patch = eva.block_fields(tensors), eva.patch_of(tensors)
    timm_eva.check_arguments(config, fields, _NEEDED)
    origin_name, origin = formats.choose_origin(
        hints, possible_origins(ORIGINS, fields["width"]), _configured_origin(config)
    )
    hints = timm_arguments.with_size(hints, config)
    is_lingbot = "lingbot" in timm_arguments.architecture_of(config)
    fields |= {
        **origin.fields,
        "image_size": _image_size(hints, patch),
        "rotary": "dinov3",
        "heads": timm_eva.heads(config, hints, fields["width"]),
        "pool": timm_eva.pooling(config, "cls" if is_lingbot else "mean"),
    }
    return formats.ModelSpec(
        fields,
        timm_eva.preprocessing_of(config, origin, patch),
        origin_name,
        timm_arguments.label_names(config, fields["num_classes"]),
    )


def describe_original(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of one of the authors' files."""
    width, in_channels, *patch = formats.axes_of(
        tensors, "patch_embed.proj.weight", "out, in, height, width"
    )
    is_gated = "blocks.0.mlp.w3.weight" in tensors
    last = "w3" if is_gated else "fc2"
    formats.axes_of(tensors, f"blocks.0.mlp.{last}.weight", "out, in")
    rotary, heads = _rotary_and_heads(tensors, hints, width)
    # The ViT-L of satellite images alone has a separate norm of small crops.
    found = "dinov3-sat493m" if width == 1024 and "local_cls_norm.weight" in tensors else None
    found = "dinov3" if width == 1024 and found is None else found
    origin_name, origin = formats.choose_origin(
        hints, possible_origins(ORIGINAL_ORIGINS, width), found
    )
    fields = {
        **origin.fields,
        "num_classes": 0,
        "image_size": _image_size(hints, tuple(patch)),
        "patch_size": formats.side_or_pair(tuple(patch)),
        "in_channels": in_channels,
        "width": width,
        "depth": formats.count_blocks(tensors, r"blocks\.(\d+)\.norm1\.weight"),
        "heads": heads,
        "mlp_width": formats.most_common_side(tensors, rf"blocks\.\d+\.mlp\.{last}\.weight", 1),
        "mlp": "swiglu" if is_gated else "plain",
        "pool": "cls",
        "class_token": True,
        "registers": formats.axes_of(tensors, "storage_tokens", "1, registers, width")[1],
        "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in tensors else None,
        "qkv_bias": _original_bias(tensors),
        "rotary": rotary,
    }
    return formats.ModelSpec(fields, dict(origin.preprocessing), origin_name)


def possible_origins(
    origins: Mapping[str, formats.Origin], width: int
) -> dict[str, formats.Origin]:
    """Return the origins of models of this width."""
    return {name: origins[name] for name in origins if name == "dinov3" or width in _OF_BOTH}


def writes(fields: Mapping[str, Any]) -> bool:
    """Return whether a ViT has the rotary positions of DINOv3."""
    return fields["rotary"].startswith("dinov3")


def finish(tensors: dict[str, np.ndarray], fields: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the tensors with separate gates and values of gated MLPs."""
    return timm_eva.finish(tensors, fields, split_gate=fields["mlp"] == "swiglu")


def config(fields: Mapping[str, Any], preprocessing: Any, class_names: Any) -> dict[str, Any]:
    """Return timm's `config.json`; UserError for fields that no DINOv3 of timm has."""
    is_gated = fields["mlp"] == "swiglu"
    return timm_eva.written(
        fields,
        preprocessing,
        class_names,
        architecture="vit_base_patch16_dinov3",
        arguments={
            "num_reg_tokens": fields["registers"],
            "swiglu_mlp": is_gated,
            "swiglu_align_to": int(is_gated),  # a multiple of 1, so the width stays as it is
        },
        needed={
            "positions": "none",
            "rotary": "dinov3",
            "norm_eps": 1e-5,
            **({} if is_gated else {"activation": "gelu"}),
        },
        known=("registers", "activation", "pos_on_cls"),
    )


# ----------------------------------------------------------------------------------------- inside


def _configured_origin(config: Mapping[str, Any]) -> str | None:
    """Return the origin by the mean of the configuration; None if it has none."""
    mean = formats.configured_numbers(timm_arguments.pretrained_of(config), "mean")
    if mean is None:
        return None
    return "dinov3-sat493m" if mean == _SATELLITE["mean"] else "dinov3"


def _image_size(hints: formats.Hints, patch: tuple[int, int]) -> int | tuple[int, int]:
    """Return the size of the hints, or the usual one, as a multiple of the patch."""
    sides = hints.image_size or (_IMAGE_SIZE, _IMAGE_SIZE)
    return formats.side_or_pair(
        tuple(max(side // p, 1) * p for side, p in zip(sides, patch, strict=True))
    )


def _rotary_and_heads(tensors: Tensors, hints: formats.Hints, width: int) -> tuple[str, int]:
    """Return the kind of rotary positions and the number of heads, by the periods of the file.

    Raises UserError for other periods, as of another base or size.
    """
    if "rope_embed.periods" not in tensors:
        return "dinov3_bfloat16", formats.need_heads(hints, None, width)
    [number] = formats.axes_of(tensors, "rope_embed.periods", "periods")
    exact = 100.0 ** (np.arange(number) / number)
    kinds = {"dinov3_bfloat16": exact.astype(jnp.bfloat16).astype(float), "dinov3": exact}
    periods = np.asarray(tensors["rope_embed.periods"]).astype(float)
    rotary = next((k for k, known in kinds.items() if np.allclose(periods, known, 1e-5)), None)
    if rotary is None or width % (4 * number):
        raise UserError(
            f"rope_embed.periods has {number} numbers up to {periods.max():g} for width {width}; "
            "DINOv3 has head_dim / 4 numbers, powers from 1 to 100, and other rotary positions are "
            "not supported"
        )
    return rotary, formats.need_heads(hints, width // (4 * number), width)


def _original_bias(tensors: Tensors) -> bool | str:
    """Return our name of the bias of queries, keys and values: masked, whole or none.

    Raises UserError for a mask that hides anything else than the keys' third.
    """
    masks = [n for n in tensors if re.fullmatch(r"blocks\.\d+\.attn\.qkv\.bias_mask", n)]
    for name in masks:
        thirds = np.asarray(tensors[name]).reshape(-1)
        if not np.array_equal(thirds, np.repeat([1, 0, 1], thirds.size // 3)):
            raise UserError(
                f"{name} should be 1 for queries and values and 0 for keys: the file is damaged, "
                "or of a model without trained weights"
            )
    return "qv" if masks else "blocks.0.attn.qkv.bias" in tensors


FORMATS = (
    formats.CheckpointFormat(
        name="timm",
        signature=(
            r"patch_embed\.proj\.weight",
            r"cls_token",
            r"reg_token",
            r"blocks\.0\.gamma_1",
            r"blocks\.0\.attn\.qkv\.weight",
        ),
        absent=(r"pos_embed", r"blocks\.0\.attn\.qkv\.bias", r"storage_tokens"),
        rows=eva.ROWS,
        describe=describe,
        finish=finish,
        config=config,
        writes=writes,
        others=r"(?!vit_\w+_patch\d+_(dinov3(_qkvb)?|lingbot)$).+",
    ),
    formats.CheckpointFormat(
        name="dinov3",
        signature=(
            r"patch_embed\.proj\.weight",
            r"storage_tokens",
            r"blocks\.0\.attn\.qkv\.weight",
        ),
        absent=(r"pos_embed",),
        rows=ORIGINAL_ROWS,
        describe=describe_original,
        ignored=IGNORED,
    ),
)
