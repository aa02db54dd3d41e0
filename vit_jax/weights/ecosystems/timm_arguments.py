"""Arguments in timm's `config.json` for a ViT, with timm's defaults for missing ones.

timm writes three layers: the name of an architecture, `model_args` that differ from it, and a
`pretrained_cfg` with the preprocessing. `global_pool` is at the root too, as a description of the
saved model. Older files have everything at the root.

Source: timm 1.0.31, `VisionTransformer`, `_hub._parse_model_cfg` and `_builder`, by running them.
"""

import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Any

from vit_jax.errors import UserError
from vit_jax.weights import formats
from vit_jax.weights.ecosystems.timm_writing import POOLS
from vit_jax.weights.io.safety import show
from vit_jax.weights.mapping import Tensors

# Architectures with tensor names of ViTs but another computation: rotary positions, post-norm,
# parallel blocks, gates, convolutional stems, pooling in stages.
OTHERS = (
    r"(?!eva_large_patch14_).*(rope|_pe_|_rpn_|relpos|dinov3|lingbot|eva|beit|hiera|qwen|deepseek"
    r"|aimv2|samvit|cait|_mci_|_xp_|_radio_|18x2|_[dp]+(wee|little)_|vitamin|naflex).*"
    r"|test_vit[34]"
)

# Number of heads by the name and the width of an architecture.
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

# Arguments of timm's class that change its computation and that no ViT here has, with the values
# that keep it unchanged. The other arguments are in the tensors, or are for training.
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
    """Return the name of the architecture; empty if the configuration has none."""
    return str(config.get("architecture", ""))


def pretrained_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `pretrained_cfg`, combined with the root as in timm."""
    if "pretrained_cfg" not in config:  # timm before 0.8 had everything at the root
        return {"label_names": config.get("labels"), **config}
    section = formats.configured_section(config, "pretrained_cfg")
    above = {name: config[name] for name in ("num_classes", "label_names") if name in config}
    return {**section, **above}


def label_names(config: Mapping[str, Any], num_classes: int) -> tuple[str, ...] | None:
    """Return the class names; None if they are incomplete, or there is no head."""
    names = pretrained_of(config).get("label_names")
    if isinstance(names, Mapping):  # by number; some may be missing
        names = [names.get(str(i)) for i in range(len(names))]
    if not isinstance(names, list) or not names or not num_classes or None in names:
        return None
    return tuple(map(str, names))


def pooling(tensors: Tensors, config: Mapping[str, Any]) -> str:
    """Return our name of the pooling in the configuration, or of timm's default.

    Raises UserError for an unsupported pooling, or if its tensors are missing.
    """
    has_class, has_map = "cls_token" in tensors, "attn_pool.latent" in tensors
    named = named_pool(config)
    ours = {theirs: name for name, theirs in POOLS.items()}
    if named is not None and named not in ours:
        raise UserError(
            f"config.json: global_pool = {named!r} is not supported; use one of "
            f"{', '.join(map(repr, ours))}"
        )
    pool = ours.get(named) or _default_pool(tensors, config)
    if (pool == "map") != has_map or (pool == "cls" and not has_class):
        raise UserError(
            f"config.json: global_pool = {named!r}, but the tensors have "
            f"{'' if has_class else 'no '}class token and {'' if has_map else 'no '}attention "
            "pooling; the two files are of different models"
        )
    arguments = formats.configured_section(config, "model_args")
    if arguments.get("pool_include_prefix") and pool in ("mean", "map"):
        raise UserError(
            "config.json: pool_include_prefix = true pools class token and registers with the "
            "patches, which is not supported"
        )
    return pool


def named_pool(config: Mapping[str, Any]) -> str | None:
    """Return the configured pooling: an argument takes precedence over the saved model's entry."""
    sections = (
        formats.configured_section(config, "model_args"),
        formats.configured_section(config, "pretrained_cfg"),
        config,
    )
    named = (formats.configured_text(section, "global_pool") for section in sections)
    return next((name for name in named if name is not None), None)


def activation(config: Mapping[str, Any], *, gated: bool, usual: str) -> str:
    """Return our name of the activation; `usual` if the configuration has none.

    Raises UserError for an unsupported one.
    """
    named = formats.configured_text(formats.configured_section(config, "model_args"), "act_layer")
    if gated:
        if named not in (None, "silu", "swish"):
            raise UserError(
                f"config.json: act_layer = {named!r} is not supported in a gated MLP; use 'silu'"
            )
        return "gelu"  # a gated MLP does not use it
    if named is None:
        like = architecture_of(config)
        own = (name for known, name in _ACTIVATIONS.items() if re.fullmatch(known, like))
        return next(own, "gelu" if like else usual)
    allowed = ("gelu", "gelu_tanh", "quick_gelu", "relu")
    if named not in allowed:
        raise UserError(
            f"config.json: act_layer = {named!r} is not supported; use one of {', '.join(allowed)}"
        )
    return named


def norm_eps(config: Mapping[str, Any], usual: float) -> float:
    """Return the epsilon of norms: torch's default in timm's CLIP architectures, else 1e-6.

    `usual` is the epsilon of files without a configuration.
    """
    name = architecture_of(config)
    if not name:
        return usual
    return 1e-5 if "_clip_" in name else 1e-6


def heads(config: Mapping[str, Any], width: int) -> int | None:
    """Return the number of attention heads in the configuration, or of its architecture."""
    arguments = formats.configured_section(config, "model_args")
    architecture = architecture_of(config)
    if "num_heads" in arguments:
        return formats.configured_number(arguments, "num_heads")
    if architecture in _MORE_HEADS:
        return _MORE_HEADS[architecture]
    words = architecture.split("_")
    return next((_HEADS[word, width] for word in words if (word, width) in _HEADS), None)


def check_arguments(config: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raise UserError for arguments that change ViT's computation or contradict the tensors.

    found: values in the tensors, by timm's names of arguments.
    """
    arguments = formats.configured_section(config, "model_args")
    for name, value in arguments.items():
        fits = _NEEDED.get(name, () if name not in _NEUTRAL else (value,))
        if value is not None and not any(value is fit or value == fit for fit in fits):
            raise UserError(
                f"config.json: model_args has {show(name)} = {show(value)}, which changes timm's "
                "ViT in a way that is not supported yet"
            )
    check_found(config, found)


def check_found(config: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raise UserError for arguments that contradict the tensors; see `check_arguments`."""
    arguments = formats.configured_section(config, "model_args")
    for name, value in found.items():
        configured = arguments.get(name)
        if name == "init_values":  # a number means that there is a layer scale
            configured = None if name not in arguments else configured is not None
        if configured is not None and configured != value:
            raise UserError(
                f"config.json: {name} = {show(arguments[name])}, but the tensors have "
                f"{show(value)}; the two files are of different models, or the tensors are "
                "incomplete"
            )


# Arguments of every timm model that the tensors show, or that are only for training.
_OF_EVERY_MODEL = (
    *("in_chans", "num_classes", "img_size", "drop_rate", "drop_path_rate", "proj_drop_rate"),
    *("attn_drop_rate", "drop_block_rate", "zero_init_last", "weight_init", "head_init_scale"),
)


def check_plain(
    config: Mapping[str, Any], free: Collection[str], needed: Mapping[str, tuple[Any, ...]]
) -> None:
    """Raise UserError for `model_args` with which timm's computation may differ from ours.

    timm 1.0.31 writes arguments with default values too.

    Args:
        free: arguments that the tensors show, or that are read elsewhere.
        needed: supported values of other arguments; global_pool is "avg".
    """
    needed = {"global_pool": ("avg", ""), **needed}
    described = {"global_pool": config.get("global_pool")}  # the root describes the saved model
    for name, value in {**described, **formats.configured_section(config, "model_args")}.items():
        if name in free or name in _OF_EVERY_MODEL or value is None:
            continue
        if not any(value is fit or value == fit for fit in needed.get(name, ())):
            allowed = needed.get(name)
            can = f"; use {' or '.join(map(repr, allowed))}" if allowed else ""
            raise UserError(
                f"config.json: model_args has {show(name)} = {show(value)}, which may change the "
                f"model in a way that is not supported yet{can}"
            )


def with_size(hints: formats.Hints, config: Mapping[str, Any]) -> formats.Hints:
    """Return the hints with the image size of the configuration, if it has one."""
    arguments = formats.configured_section(config, "model_args")
    if hints.image_size is not None:
        return hints
    size = formats.configured_size(arguments, "img_size") or input_size_of(pretrained_of(config))
    return dataclasses.replace(hints, image_size=size)


def input_size_of(pretrained: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return (height, width) of images in the configuration, whose sizes have channels first."""
    sides = pretrained.get("input_size")
    if sides is None:
        return None
    return formats.configured_size(
        {"input_size": sides[1:] if isinstance(sides, list) else 0}, "input_size"
    )


def preprocessing_of(
    arguments: Mapping[str, Any], pretrained: Mapping[str, Any], patch: tuple[int, int]
) -> dict[str, Any]:
    """Return the fields of Preprocessing for a `pretrained_cfg`.

    If it has some of them, the others are the defaults of timm's `PretrainedCfg`. They include the
    image size only if the model accepts other sizes than that of its position table.

    Raises:
        UserError: crop_mode is not timm's, or pads and crops at once.
    """
    size = input_size_of(pretrained) if arguments.get("dynamic_img_size") else None
    if size and any(side % p for side, p in zip(size, patch, strict=True)):
        size = None
    named = {
        "mean": formats.configured_numbers(pretrained, "mean"),
        "std": formats.configured_numbers(pretrained, "std"),
        "crop": pretrained.get("crop_pct"),
        "interpolation": formats.configured_text(pretrained, "interpolation"),
        "resize": _resize(pretrained),
    }
    named = {name: value for name, value in named.items() if value is not None}
    if named:
        named = {**_defaults(arguments, pretrained), **named}
    if named.get("resize") == "pad" and named["crop"] != 1:
        raise UserError(
            f"config.json: crop_mode = 'border' with crop_pct = {named['crop']!r} pads and crops "
            "at once, which is not supported yet; use 1.0 to pad only"
        )
    return named | ({"size": size} if size else {})


# ----------------------------------------------------------------------------------------- inside

# timm's crop_mode to our `resize`.
RESIZES = {"center": "cover", "squash": "squash", "border": "pad"}


def _resize(pretrained: Mapping[str, Any]) -> str | None:
    mode = formats.configured_text(pretrained, "crop_mode")
    if mode is not None and mode not in RESIZES:
        raise UserError(
            f"config.json: crop_mode = {show(mode)} is invalid; use one of {', '.join(RESIZES)}"
        )
    return RESIZES.get(mode)


def _defaults(arguments: Mapping[str, Any], pretrained: Mapping[str, Any]) -> dict[str, Any]:
    """Preprocessing of timm's `PretrainedCfg`; mean and deviation are those of three channels."""
    size = pretrained.get("input_size")
    channels = arguments.get("in_chans", size[0] if isinstance(size, list) and size else 3)
    return {
        **(formats.IMAGENET if channels == 3 else {}),
        "crop": 0.875,
        "interpolation": "bicubic",
        "resize": "cover",
    }


def _default_pool(tensors: Tensors, config: Mapping[str, Any]) -> str:
    """Return the default pooling.

    timm places the norm after the pooling exactly if it pools by the mean, unless `fc_norm` is set;
    then the pooling is the architecture's default: the class token if there is one.
    """
    if "attn_pool.latent" in tensors:
        return "map"
    if "cls_token" not in tensors:
        return "mean"
    fc_norm = formats.configured_section(config, "model_args").get("fc_norm")
    by_mean = "fc_norm.weight" in tensors if fc_norm is None else "_gap_" in architecture_of(config)
    return "mean" if by_mean else "cls"
