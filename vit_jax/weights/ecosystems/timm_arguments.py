"""Arguments of timm's `config.json` for a ViT, with timm's defaults where it says nothing.

timm writes three layers: the name of an architecture, `model_args` that differ from it, and a
`pretrained_cfg` with the preprocessing. `global_pool` stands at the root besides, as a description
of the model that was saved. Older files have all of it at the root.

Source: timm 1.0.31, `VisionTransformer`, `_hub._parse_model_cfg` and `_builder`, by running them.
"""

import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Any

from vit_jax.errors import UserError
from vit_jax.weights.ecosystems.timm_writing import POOLS
from vit_jax.weights.formats import (
    IMAGENET,
    Hints,
    configured_number,
    configured_numbers,
    configured_section,
    configured_size,
    configured_text,
)
from vit_jax.weights.io.safety import show
from vit_jax.weights.mapping import Tensors

# Architectures with names like those of ViTs that compute something else: rotary positions, norms
# after, blocks in parallel, gates, convolutions in front, pooling in stages.
OTHERS = (
    r"(?!eva_large_patch14_).*(rope|_pe_|_rpn_|relpos|dinov3|lingbot|eva|beit|hiera|qwen|deepseek"
    r"|aimv2|samvit|cait|_mci_|_xp_|_radio_|18x2|_[dp]+(wee|little)_|vitamin|naflex).*"
    r"|test_vit[34]"
)

# How many heads an architecture has that is called so and is that wide.
_HEADS = {
    ("tiny", 192): 3,
    ("wee", 256): 4,
    ("xsmall", 256): 4,
    ("little", 320): 5,
    ("small", 384): 6,
    ("medium", 512): 8,
    ("mediumd", 512): 8,
    ("betwixt", 640): 10,
    ("base", 768): 12,
    ("base", 896): 14,
    ("so150m2", 832): 13,
    ("so150m", 896): 14,
    ("large", 1024): 16,
    ("intern300m", 1024): 16,
    ("so400m", 1152): 16,
    ("huge", 1280): 16,
    ("giant", 1408): 16,
    ("giant", 1536): 24,
    ("giantopt", 1536): 16,
    ("gigantic", 1664): 16,
}
_MORE_HEADS = {"vit_base_patch16_gap_224": 16}

# Architectures with an activation of their own, which tensors do not show.
_ACTIVATIONS = {
    r".*_quickgelu_.*": "quick_gelu",
    r"vit_(base_patch32|so400m_patch16|giantopt_patch16)_siglip_.*": "gelu_tanh",
    r"vit_large_patch16_siglip_(gap_)?512": "gelu_tanh",
}

# Arguments of timm's class that change what it computes and that no ViT here has: those that stand
# for the class as it is. The others are in the tensors, or are for training.
_NEEDED = {
    "norm_layer": (None, "layernorm", "layer_norm", "LayerNorm"),
    "embed_norm_layer": (None,),
    "pos_embed": (None, "learn"),
    "final_norm": (None, True),
    "proj_bias": (None, True),
    "scale_attn_norm": (None, False),
    "scale_mlp_norm": (None, False),
    "use_naflex": (None, False),
}
_NEUTRAL = (
    *("img_size", "patch_size", "in_chans", "num_classes", "embed_dim", "depth", "num_heads"),
    *("mlp_ratio", "qkv_bias", "qk_norm", "init_values", "class_token", "no_embed_class"),
    *("reg_tokens", "pre_norm", "fc_norm", "global_pool", "act_layer", "pool_include_prefix"),
    *("dynamic_img_size", "dynamic_img_pad", "strict_img_size", "weight_init", "fix_init"),
    *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate"),
    *("drop_path_rate", "pretrained_strict"),
)


def architecture_of(config: Mapping[str, Any]) -> str:
    """The name of the architecture; empty where the configuration has none."""
    return str(config.get("architecture", ""))


def pretrained_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `pretrained_cfg`, as timm makes it of what stands there and at the root."""
    if "pretrained_cfg" not in config:  # timm before 0.8 kept all of it at the root
        return {"label_names": config.get("labels"), **config}
    section = configured_section(config, "pretrained_cfg")
    above = {name: config[name] for name in ("num_classes", "label_names") if name in config}
    return {**section, **above}


def label_names(config: Mapping[str, Any], num_classes: int) -> tuple[str, ...] | None:
    """The names of classes; None where nobody says all of them, or there is no head."""
    names = pretrained_of(config).get("label_names")
    if isinstance(names, Mapping):  # by number, of which some may be missing
        names = [names.get(str(i)) for i in range(len(names))]
    if not isinstance(names, list) or not names or not num_classes or None in names:
        return None
    return tuple(map(str, names))


def pooling(tensors: Tensors, config: Mapping[str, Any]) -> str:
    """Return our name of the pooling in the configuration, or of timm's default.

    Raises UserError for one that ViT has not here, or that needs tensors which are not there.
    """
    has_class, has_map = "cls_token" in tensors, "attn_pool.latent" in tensors
    named = _named_pool(config)
    ours = {theirs: name for name, theirs in POOLS.items()}
    if named is not None and named not in ours:
        raise UserError(
            f"config.json: global_pool = {named!r} is no pooling that ViT has here; there are "
            f"{', '.join(map(repr, ours))}"
        )
    pool = ours.get(named) or _default_pool(tensors, config)
    if (pool == "map") != has_map or (pool == "cls" and not has_class):
        raise UserError(
            f"config.json: global_pool = {named!r}, and the tensors have "
            f"{'' if has_class else 'no '}class token and {'' if has_map else 'no '}attention "
            "pooling; the two files are of different models"
        )
    arguments = configured_section(config, "model_args")
    if arguments.get("pool_include_prefix") and pool in ("mean", "map"):
        raise UserError(
            "config.json: pool_include_prefix = true pools class token and registers with the "
            "patches, which ViT does not do here"
        )
    return pool


def activation(config: Mapping[str, Any], *, gated: bool, usual: str) -> str:
    """Return our name of the activation; `usual` if the configuration has none.

    Raises UserError for one that is not here.
    """
    named = configured_text(configured_section(config, "model_args"), "act_layer")
    if gated:
        if named not in (None, "silu", "swish"):
            raise UserError(
                f"config.json: act_layer = {named!r} of a gated MLP, which has 'silu' here"
            )
        return "gelu"  # which a gated MLP does not read
    if named is None:
        like = architecture_of(config)
        own = (name for known, name in _ACTIVATIONS.items() if re.fullmatch(known, like))
        return next(own, "gelu" if like else usual)
    legal = ("gelu", "gelu_tanh", "quick_gelu", "relu")
    if named not in legal:
        raise UserError(
            f"config.json: act_layer = {named!r} is no activation that ViT has here; there are "
            f"{', '.join(legal)}"
        )
    return named


def norm_eps(config: Mapping[str, Any], usual: float) -> float:
    """The epsilon of norms: torch's own in architectures called CLIP, 1e-6 in all others of timm.

    `usual` is that of files without a configuration.
    """
    name = architecture_of(config)
    if not name:
        return usual
    return 1e-5 if "_clip_" in name else 1e-6


def heads(config: Mapping[str, Any], width: int) -> int | None:
    """The heads of attention that the configuration names, by number or by architecture."""
    arguments = configured_section(config, "model_args")
    architecture = architecture_of(config)
    if "num_heads" in arguments:
        return configured_number(arguments, "num_heads")
    if architecture in _MORE_HEADS:
        return _MORE_HEADS[architecture]
    words = architecture.split("_")
    return next((_HEADS[word, width] for word in words if (word, width) in _HEADS), None)


def check_arguments(config: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raise UserError where arguments change what ViT computes here, or deny the tensors.

    found: by timm's names of arguments, what the tensors have.
    """
    arguments = configured_section(config, "model_args")
    for name, value in arguments.items():
        fits = _NEEDED.get(name, () if name not in _NEUTRAL else (value,))
        if value is not None and not any(value is fit or value == fit for fit in fits):
            raise UserError(
                f"config.json: model_args has {show(name)} = {show(value)}, with which timm's ViT "
                "computes something else than the one here; such a model cannot be read yet"
            )
    for name, value in found.items():
        told = arguments.get(name)
        if name == "init_values":  # a number, which says that there is a layer scale
            told = None if name not in arguments else told is not None
        if told is not None and told != value:
            raise UserError(
                f"config.json: {name} = {show(arguments[name])}, and the tensors have "
                f"{show(value)}; the two files are of different models, or the tensors are a part "
                "of one"
            )


# Of every model of timm: what the tensors show, and what is for training alone.
_OF_EVERY_MODEL = (
    *("in_chans", "num_classes", "img_size", "drop_rate", "drop_path_rate", "proj_drop_rate"),
    *("attn_drop_rate", "drop_block_rate", "zero_init_last", "weight_init", "head_init_scale"),
)


def check_plain(
    config: Mapping[str, Any], free: Collection[str], needed: Mapping[str, tuple[Any, ...]]
) -> None:
    """Raise UserError for `model_args` with which timm computes something else than is here.

    timm 1.0.31 writes arguments at their defaults too.

    Args:
        free: arguments that the tensors show, or that are read elsewhere.
        needed: the values of others with which they are as here; global_pool is "avg".
    """
    needed = {"global_pool": ("avg", ""), **needed}
    described = {"global_pool": config.get("global_pool")}  # at the root it says what was saved
    for name, value in {**described, **configured_section(config, "model_args")}.items():
        if name in free or name in _OF_EVERY_MODEL or value is None:
            continue
        if not any(value is fit or value == fit for fit in needed.get(name, ())):
            legal = needed.get(name)
            can = f"; it can be {' or '.join(map(repr, legal))}" if legal else ""
            raise UserError(
                f"config.json: model_args has {show(name)} = {show(value)}, which may compute "
                f"something else than the model here and cannot be read yet{can}"
            )


def with_size(hints: Hints, config: Mapping[str, Any]) -> Hints:
    """Return what was asked, with the image size of the configuration where it names one."""
    arguments = configured_section(config, "model_args")
    if hints.image_size is not None:
        return hints
    size = configured_size(arguments, "img_size") or input_size_of(pretrained_of(config))
    return dataclasses.replace(hints, image_size=size)


def input_size_of(pretrained: Mapping[str, Any]) -> tuple[int, int] | None:
    """(height, width) of the images that the configuration names, channels first."""
    sides = pretrained.get("input_size")
    if sides is None:
        return None
    return configured_size(
        {"input_size": sides[1:] if isinstance(sides, list) else 0}, "input_size"
    )


def preprocessing_of(
    arguments: Mapping[str, Any], pretrained: Mapping[str, Any], patch: tuple[int, int]
) -> dict[str, Any]:
    """Fields of Preprocessing that a `pretrained_cfg` stands for.

    Where it names some of them, the others are the defaults of timm's `PretrainedCfg`. The size of
    images is among them only if the model is made to take other sizes than that of its table.

    Raises:
        UserError: crop_mode is not timm's, or pads and crops at once.
    """
    size = input_size_of(pretrained) if arguments.get("dynamic_img_size") else None
    if size and any(side % p for side, p in zip(size, patch, strict=True)):
        size = None
    named = {
        "mean": configured_numbers(pretrained, "mean"),
        "std": configured_numbers(pretrained, "std"),
        "crop": pretrained.get("crop_pct"),
        "interpolation": configured_text(pretrained, "interpolation"),
        "resize": _resize(pretrained),
    }
    named = {name: value for name, value in named.items() if value is not None}
    if named:
        named = {**_defaults(arguments, pretrained), **named}
    if named.get("resize") == "pad" and named["crop"] != 1:
        raise UserError(
            f"config.json: crop_mode = 'border' with crop_pct = {named['crop']!r} pads and crops "
            "at once, which cannot be read yet; 1.0 pads only"
        )
    return named | ({"size": size} if size else {})


# ----------------------------------------------------------------------------------------- inside

# timm's crop_mode, and our way of resizing.
RESIZES = {"center": "cover", "squash": "squash", "border": "pad"}


def _resize(pretrained: Mapping[str, Any]) -> str | None:
    mode = configured_text(pretrained, "crop_mode")
    if mode is not None and mode not in RESIZES:
        raise UserError(
            f"config.json: crop_mode = {show(mode)} is none of timm's: {', '.join(RESIZES)}"
        )
    return RESIZES.get(mode)


def _defaults(arguments: Mapping[str, Any], pretrained: Mapping[str, Any]) -> dict[str, Any]:
    """Preprocessing of timm's `PretrainedCfg`; mean and deviation are those of three channels."""
    size = pretrained.get("input_size")
    channels = arguments.get("in_chans", size[0] if isinstance(size, list) and size else 3)
    return {
        **(IMAGENET if channels == 3 else {}),
        "crop": 0.875,
        "interpolation": "bicubic",
        "resize": "cover",
    }


def _named_pool(config: Mapping[str, Any]) -> str | None:
    """The pooling that is said: an argument goes first, then what describes the saved model."""
    sections = (
        configured_section(config, "model_args"),
        configured_section(config, "pretrained_cfg"),
        config,
    )
    named = (configured_text(section, "global_pool") for section in sections)
    return next((name for name in named if name is not None), None)


def _default_pool(tensors: Tensors, config: Mapping[str, Any]) -> str:
    """The pooling where nobody says it.

    timm puts the norm after the pooling exactly where it pools by the mean, unless `fc_norm` says
    otherwise; then the pooling is the architecture's own, of the class token where there is one.
    """
    if "attn_pool.latent" in tensors:
        return "map"
    if "cls_token" not in tensors:
        return "mean"
    told = configured_section(config, "model_args").get("fc_norm")
    by_mean = "fc_norm.weight" in tensors if told is None else "_gap_" in architecture_of(config)
    return "mean" if by_mean else "cls"
