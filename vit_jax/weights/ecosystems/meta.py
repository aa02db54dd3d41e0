"""Origins of the original files of DeiT, DeiT III, MAE, DINO, DINOv2 and I-JEPA.

They have timm's names, so their table is in `timm`; tensors show only some of the differences.
Preprocessing is that of the authors' evaluation, and positions are resized as in their code.
"""

from typing import Any

from vit_jax.weights.formats import IMAGENET, Origin
from vit_jax.weights.mapping import Tensors

ORIGINS = {
    "deit": Origin(
        {"pos_resize": "torch-bicubic"},
        {**IMAGENET, "crop": 0.875, "interpolation": "bicubic"},
        "Touvron et al. 2021 and their repository: datasets.py, main.py",
    ),
    "deit3": Origin(
        {"pos_resize": "torch-bicubic"},
        {**IMAGENET, "crop": 1.0, "interpolation": "bicubic"},
        "Touvron et al. 2022, DeiT III, and their repository: README_revenge.md",
    ),
    "mae": Origin(
        {"pos_resize": "torch-bicubic"},
        {**IMAGENET, "crop": 0.875, "interpolation": "bicubic"},
        "He et al. 2022 and their repository: util/datasets.py, util/pos_embed.py",
    ),
    "dino": Origin(
        {"pos_resize": "dinov2-bicubic"},
        {**IMAGENET, "crop": 0.875, "interpolation": "bicubic"},
        "Caron et al. 2021 and their repository: eval_linear.py, vision_transformer.py",
    ),
    "dinov2": Origin(
        {"pos_resize": "dinov2-bicubic"},
        {**IMAGENET, "crop": 0.875, "interpolation": "bicubic"},
        "Oquab et al. 2023 and their repository: hub/backbones.py, data/transforms.py",
    ),
    "ijepa": Origin(  # its repository has no other size and no evaluation
        {"pos_resize": "torch-bicubic-antialias"},
        {**IMAGENET, "crop": 0.875, "interpolation": "bilinear"},
        "Assran et al. 2023 and their repository: src/transforms.py; the usual central crop",
    ),
}


def preprocessing_of(name: str, image_size: tuple[int, int]) -> dict[str, Any]:
    """Return an origin's fields of `Preprocessing` for a size; MAE crops only small images."""
    crops = name != "mae" or max(image_size) <= 224
    return {**ORIGINS[name].preprocessing, **({} if crops else {"crop": 1.0})}


# Number of heads by width, where the usual 64 channels of a head would be wrong.
HEADS = {"ijepa": {1280: 16, 1408: 16}}

# With registers the authors of DINOv2 resize by size and with antialiasing.
DINOV2_REGISTERS = {"pos_resize": "torch-bicubic-antialias"}

# Names that no model needs: regular expression and reason.
IGNORED = {
    r"mask_token": "the mask token of pre-training",
    r"decoder_.*|decoder\..*": "the decoder of MAE's pre-training",
    r"head\.(mlp|last_layer)\..*|(dino|ibot)_head\..*": "the head of DINO's pre-training",
}


def recognised_origin(tensors: Tensors) -> str | None:
    """Return the origin if names and ranks identify it; None if they are ambiguous."""
    if "decoder_pos_embed" in tensors:
        return "mae"
    if "register_tokens" in tensors or getattr(tensors.get("mask_token"), "ndim", 0) == 2:
        return "dinov2"
    if any(name.startswith("head.last_layer.") for name in tensors):
        return "dino"
    return None


def possible_origins(tensors: Tensors) -> tuple[str, ...]:
    """Return the origins besides timm that match these tensors, if nothing identifies one."""
    has_class = "cls_token" in tensors
    if "norm_pre.weight" in tensors:
        return ("clip", "openclip")
    if "pre_logits.fc.weight" in tensors or "blocks.0.attn.q_norm.weight" in tensors:
        return ()
    if "dist_token" in tensors:
        return ("deit",)
    if "blocks.0.gamma_1" in tensors:
        return ("deit3",)
    if "blocks.0.ls1.gamma" in tensors:
        if not has_class:
            return ()
        return ("dinov2",) if "reg_token" in tensors else ("deit3", "dinov2")
    if "reg_token" in tensors:
        return ()
    if not has_class:
        return ("siglip",) if "attn_pool.latent" in tensors else ("siglip", "ijepa")
    return ("mae",) if "fc_norm.weight" in tensors else ("deit", "mae", "dino")


def unreadable_look_alike(tensors: Tensors) -> str | None:
    """Return an unsupported model with exactly these tensors too; None if none is known."""
    if "attn_pool.latent" in tensors and "norm_pre.weight" in tensors:
        return "Meta's Perception Encoder (`vit_pe_*` of timm), which also has rotary positions"
    if "blocks.0.gamma_1" in tensors:
        return "RoPE-ViT (`vit_*_rope_ape_*` of timm), which also has rotary positions"
    if "norm_pre.weight" in tensors or "cls_token" in tensors or "reg_token" in tensors:
        return None
    if "blocks.0.attn.qkv.bias" not in tensors and "blocks.0.ls1.gamma" not in tensors:
        return "a ViT with post-norm (`vit_*_rpn_*` of timm)"
    return None
