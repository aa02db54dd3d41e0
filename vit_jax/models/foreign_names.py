"""Names of timm, Hugging Face, torchvision, Google and Meta for the models and fields here.

    own_name("vit_base_patch16_224.augreg_in21k")  # "ViT-B/16"
    own_name("microsoft/swin-tiny-patch4-window7-224")  # "Swin-T"
    own_field("embed_dim", fields)  # "width"

They are used in error messages only: a model has one name. Unsupported families
(EfficientNet V2) have no name here, even if a name is similar.
"""

import re
from collections.abc import Collection, Iterable

_SIZE = {
    **{"tiny": "Ti", "small": "S", "base": "B", "large": "L", "huge": "H"},
    **{"giant": "g", "gigantic": "G"},
    **{"ti": "Ti", "t": "Ti", "s": "S", "b": "B", "l": "L", "h": "H", "g": "g", "xl": "XL"},
}
_SIZES = "|".join(_SIZE)
_LONG = "tiny|small|base|large|huge|giant|gigantic"

# Patterns of whole bare names (`_bare`) to ours with the groups of the match; a group that is a
# size is converted to our spelling. The first match counts.
_PATTERNS = [
    # Hybrids.
    (r"vit_tiny_r_s16_p8.*", "R+ViT-Ti/16"),
    (rf"vit_({_LONG})_r(\d+)_s(\d+).*", "R{2}+ViT-{1}/{3}"),
    (r"vit_hybrid_base(_bit)?.*", "R50+ViT-B/16"),
    (rf"r_?(\d*)_(?:vit_)?({_SIZES})_?(\d+).*", "R{1}+ViT-{2}/{3}"),
    # DINOv3, EVA-02 and BEiT.
    (rf"vit_({_LONG})_patch(\d+)_(?:dinov3|lingbot).*", "DINOv3-{1}/{2}"),
    (rf"vit_({_LONG})_plus_patch(\d+)_dinov3.*", "DINOv3-{1}+/{2}"),
    (r"(?:vit_7b_patch16_dinov3|dinov3_vit_?7b_?16).*", "DINOv3-7B/16"),
    (rf"dinov3_vit_?({_SIZES})_?(\d+)_?plus(?:_.*)?", "DINOv3-{1}+/{2}"),
    (rf"dinov3_vit_?({_SIZES})_?(\d+)(?:_.*)?", "DINOv3-{1}/{2}"),
    (rf"eva_?02_({_LONG})_patch(14)_(?!clip).*", "EVA02-{1}/{2}"),
    (rf"beit_?(?:v2_?)?({_LONG})_patch(\d+)(?:_.*)?", "BEiT-{1}/{2}"),
    # Depth.
    (rf"(?:depth_anything_v2_vit|da_?v2_vit)_?({_SIZES})(?:_.*)?", "DepthAnythingV2-{1}"),
    (rf"depth_anything_v2_({_LONG})(?:_hf)?", "DepthAnythingV2-{1}"),
    (rf"dpt_({_LONG})(?:_384)?", "DPT-{1}/16"),
    (r"dpt_(hybrid)(?:_.*)?", "DPT-Hybrid"),
    (rf"(?:(?:cascade_)?mask_rcnn_)?vit_?det_({_SIZES}|{_LONG})(?:_.*)?", "ViTDet-{1}/16"),
    # DINOv2, and the three types of DeiT.
    (rf"vit_({_LONG})_patch14_reg4_dinov2.*", "DINOv2-{1}/14-reg"),
    (rf"vit_({_LONG})_patch14_dinov2.*", "DINOv2-{1}/14"),
    (rf"dinov2_with_registers_({_LONG}).*", "DINOv2-{1}/14-reg"),
    (rf"dinov2_vit_?({_SIZES})_?14_reg.*", "DINOv2-{1}/14-reg"),
    (rf"dinov2_(?:vit_?)?({_SIZES})(?:_?14)?(?:_.*)?", "DINOv2-{1}/14"),
    (rf"deit3_({_LONG}|medium)_patch(\d+).*", "DeiT3-{1}/{2}"),
    (rf"deit_({_LONG})_distilled_patch(\d+).*", "DeiT-{1}/{2}-distilled"),
    (rf"deit_({_LONG})_patch(\d+)_distilled.*", "DeiT-{1}/{2}-distilled"),
    (rf"deit_({_LONG})_patch(\d+).*", "DeiT-{1}/{2}"),
    (rf"deit_({_SIZES})(?:_?16)?", "DeiT-{1}/16"),
    (rf"vit_?5_({_SIZES})(?:_.*)?", "ViT-5-{1}"),
    (r"aimv2_(large|huge|1b|3b)_patch14.*", "AIMv2-{1}/14"),
    (rf"(?:vit_)?pe_core_({_SIZES})_?(?:patch)?(14|16)(?:_.*)?", "PE-Core-{1}/{2}"),
    # The convolutional stem.
    (r"vit_?c_?(1|4|18|36)_?gf.*", "ViTC-{1}GF"),
    (r"vit_(1|4|18|36)_?gf_?c.*", "ViTC-{1}GF"),
    # ViTs for any patch size, and plain ones of any training.
    (rf"flexivit_({_SIZES})(?!_patch)(?:_.*)?", "FlexiViT-{1}"),
    (rf"(?:mae_|dino_|beit_|samvit_|flexi)?vit_({_LONG})_patch(\d+)(?:_.*)?", "ViT-{1}/{2}"),
    (
        rf"(?:vit_)?(?:mae|msn|dino|siglip|ijepa)_(?:vit_?)?({_SIZES})_?(?:patch)?_?(\d+)(?:_.*)?",
        "ViT-{1}/{2}",
    ),
    (rf"clip_vit_({_LONG})_patch(\d+).*", "ViT-{1}/{2}"),
    (r"vit_mae_huge", "ViT-H/14"),
    (rf"vit_(?:mae|msn)_({_LONG})", "ViT-{1}/16"),
    (rf"vit_?({_SIZES})_?(?:patch_?)?(\d+)(?:_.*)?", "ViT-{1}/{2}"),
    (rf"({_SIZES})_?(8|14|16|32)(?:_.*)?", "ViT-{1}/{2}"),
    # Of clips.
    (r"timesformer_(?:base|b)(?:_?16)?(?:_finetuned.*)?", "TimeSformer-B/16"),
    (r"timesformer_hr(?:_.*)?", "TimeSformer-B/16-HR"),
    (r"timesformer_(?:large|long)(?:_.*)?", "TimeSformer-B/16-L"),
    # Pyramids and networks without attention.
    (r"swin_?v2_(tiny|small|base|large)(?:_(?:patch4_)?window.*)?", "SwinV2-{1}"),
    (r"swin_?v2_(t|s|b|l)", "SwinV2-{1}"),
    (r"swin_(tiny|small|base|large)(?:_patch4)?(?:_.*)?", "Swin-{1}"),
    (r"swin_?(t|s|b|l)", "Swin-{1}"),
    (r"pvt_?(?:v1_)?(tiny|small|medium|large)(?:_.*)?", "PVT-{1}"),
    (r"pvt_?v2_?b2_?(?:li|linear)(?:_.*)?", "PVTv2-B2-linear"),
    (r"pvt_?v2_?b([0-5])(?:_.*)?", "PVTv2-B{1}"),
    (r"mit_?b([0-5])(?:_.*)?", "MiT-B{1}"),
    (r"segformer_?b([0-5])(?:_.*)?", "SegFormer-B{1}"),
    (rf"mixer_?({_SIZES})_?(?:patch)?(\d+)(?:_.*)?", "Mixer-{1}/{2}"),
    (r"(?:tv_|gluon_)?res_?net_?(50|101|152)(?:_(?!32x|64x).*)?", "ResNet-{1}"),
    (r"(?:tv_)?res_?net_?(?:10t|14t|18|26|34)(?:_.*)?", "ResNet"),
    (r"convnext_?v2_(atto|femto|pico|nano|tiny|base|large|huge)(?:_.*)?", "ConvNeXtV2-{1}"),
    (r"(?:dinov3_)?convnext_(tiny|small|base|large)(?:_.*)?", "ConvNeXt-{1}"),
    (r"(?:tf_)?efficientnet_?b([0-7])(?:_.*)?", "EfficientNet-B{1}"),
]
# Parts of names that exclude a plain ViT: other positions, widths or parts.
_OTHER = (
    r"_rope_|relpos|_plus_(?!patch\d+_dinov3)|_rpn_|_pe_(?!core)|vit_pe(?!_core)|xlarge"
    r"|tiny_patch16_dinov3"
)
_COMPILED = [(re.compile(pattern), ours) for pattern, ours in _PATTERNS]
_OF_PYRAMIDS = {"tiny": "T", "small": "S", "base": "B", "large": "L", "t": "T"}
_OWN_SIZES = {
    "SwinV2": _OF_PYRAMIDS,
    "PVT": {"tiny": "Tiny", "small": "Small", "medium": "Medium", "large": "Large"},
    "DeiT3": {**_SIZE, "medium": "M"},
    "PE": {**_SIZE, **_OF_PYRAMIDS},
    "AIMv2": {"large": "L", "huge": "H", "1b": "1B", "3b": "3B"},
    "ConvNeXtV2": {
        **{"atto": "Atto", "femto": "Femto", "pico": "Pico", "nano": "Nano", "huge": "H"},
        **_OF_PYRAMIDS,
    },
}

_FIELDS = {
    "attention_dropout": "attn_drop attn_drop_rate attention_probs_dropout_prob",
    "attention_impl": "attention attn_impl attn_implementation",
    "attention_type": "attention_kind attn_type",
    "class_token": "cls_token",
    "depth": "num_hidden_layers num_layers layers n_layers blocks",
    "patch_dropout": "patch_drop_rate",
    "keep_ratio": "keep_rate base_keep_rate",
    "tome_r": "r",
    "drop_path": "drop_path_rate stochastic_depth stochastic_depth_prob dpr",
    "heads": "num_heads num_attention_heads n_heads nhead",
    "image_size": "img_size imgsz input_size resolution size",
    "in_channels": "in_chans num_channels channels",
    "layer_scale": "init_values layer_scale_init_value ls_init_value ls",
    "mlp_dropout": "drop_rate dropout proj_drop_rate hidden_dropout_prob drop",
    "mlp_width": "mlp_dim intermediate_size",
    "norm_eps": "layer_norm_eps eps",
    "num_classes": "num_labels nb_classes classes n_classes",
    "patch_size": "patch",
    "pool": "global_pool pooling gp",
    "positions": "pos_embed pos_embedding position_embedding",
    "registers": "reg_tokens num_register_tokens num_registers",
    "response_norm": "use_grn grn",
    "remat": "grad_checkpointing gradient_checkpointing",
    "width": "embed_dim hidden_size dim hidden_dim d_model",
    "widths": "embed_dims dims hidden_sizes channels",
    "window": "window_size",
}


def add_names(pattern: str, ours: str) -> None:
    """Add other libraries' names of an architecture, beside its own names.

    >>> add_names(r"cait_(xxs|xs|s|m)(\d+)(?:_.*)?", "CaiT-{1}/{2}")

    Args:
        pattern: regular expression of a whole name in lower case, with `_` between its words.
        ours: our name with the groups of the match; letters become those of a size, or capitals.
    """
    _COMPILED.append((re.compile(pattern), ours))


def own_name(name: str, known: Collection[str]) -> str | None:
    """Return our name of another library's model; None if it is not supported.

    Args:
        name: as typed, optionally with an owner before or a tag after it.
        known: all names here.
    """
    bare = _bare(name)
    if re.search(_OTHER, bare):
        return None
    for pattern, ours in _COMPILED:
        if match := pattern.fullmatch(bare):
            found = _filled(ours, [group or "" for group in match.groups()])
            if found in known:
                return found
    return None


def own_field(word: str, known: Iterable[str]) -> str | None:
    """Return our name of a field of another library's model; None if there is none."""
    word = word.lower().replace("-", "_")
    known = set(known)
    return next(
        (field for field, words in _FIELDS.items() if field in known and word in words.split()),
        None,
    )


def stated_size(name: str) -> int | None:
    """Return the image size in pixels at the end of another library's name; None without one."""
    match = re.search(r"(?<![a-z0-9])(\d{3})$", _bare(name))
    return int(match[1]) if match else None


def _bare(name: str) -> str:
    """Reduce a name such as `hf://google/vit-base-patch16-224.tag` to `vit_base_patch16_224`."""
    name = name[:200].lower().strip().removeprefix("hf://").removeprefix("hf_hub:")
    name = name.removesuffix("_weights").split(".", 1)[0]  # timm's tag
    _, slash, rest = name.rpartition("/")
    if slash and not re.fullmatch(r"(8|14|16|32)(_.*|-.*)?", rest):  # of ViT-B/16 it is the patch
        name = rest
    return re.sub(r"[^a-z0-9]+", "_", name).strip("_")


def _filled(ours: str, groups: list[str]) -> str:
    family = ours.split("-", 1)[0]
    sizes = _OWN_SIZES.get(family, _OF_PYRAMIDS if family in ("Swin", "ConvNeXt") else _SIZE)
    for number, group in enumerate(groups, start=1):
        ours = ours.replace(f"{{{number}}}", sizes.get(group, group.upper()))
    return ours
