"""Writing for timm: the `config.json` of a model, and tensors under timm's other names."""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.weights.ecosystems.plain_vit import need_plain_vit

# Fields of a ViT that `config` writes.
_WRITTEN = (
    *("num_classes", "image_size", "patch_size", "in_channels", "width", "depth", "heads"),
    *("mlp_width", "mlp", "pool", "pool_norm", "class_token", "distilled", "registers"),
    *("pos_on_cls", "embed_norm", "layer_scale", "qkv_bias", "qk_norm", "activation"),
)
# Our names of poolings to timm's.
POOLS = {"cls": "token", "mean": "avg", "map": "map", "none": ""}


def finish(tensors: dict[str, np.ndarray], fields: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the tensors that timm's model of these fields keeps elsewhere or renamed."""
    if fields["pool_norm"] == "after":
        tensors = {re.sub(r"^norm\.", "fc_norm.", name): x for name, x in tensors.items()}
    if fields["registers"] and fields["pos_on_cls"] and "cls_token" in tensors:
        # With registers timm has no position for the class token: add it to the token.
        positions = tensors["pos_embed"]
        in_front = int(fields["class_token"])
        tensors["cls_token"] = tensors["cls_token"] + positions[:, :in_front]
        tensors["pos_embed"] = np.ascontiguousarray(positions[:, in_front:])
    return tensors


def config(fields: Mapping[str, Any], preprocessing: Preprocessing, class_names) -> dict[str, Any]:
    """Return timm's `config.json` of the model, for `timm.create_model("local-dir:FOLDER")`.

    Its arguments are complete and do not depend on the architecture's defaults.

    Raises UserError if timm has no argument for a field.
    """
    _check_arguments(fields)
    arguments = _arguments(fields)
    if preprocessing.size != tuple(np.broadcast_to(fields["image_size"], 2)):
        arguments["dynamic_img_size"] = True  # the position table has another size
    if fields["distilled"]:
        architecture = "deit_base_distilled_patch16_224"
    elif fields["mlp"] == "swiglu":
        architecture = "vit_giant_patch14_dinov2"
    else:
        # The epsilon is not an argument but a property of the architecture.
        as_clip = fields["norm_eps"] == 1e-5
        architecture = "vit_base_patch32_clip_224" if as_clip else "vit_base_patch16_224"
    return {
        "architecture": architecture,
        "num_classes": fields["num_classes"],
        "model_args": arguments,
        "pretrained_cfg": pretrained_cfg(
            fields,
            preprocessing,
            class_names,
            first="patch_embed.proj",
            classifier=["head", "head_dist"] if fields["distilled"] else "head",
        ),
    }


def pretrained_cfg(
    fields: Mapping[str, Any],
    preprocessing: Preprocessing,
    class_names,
    *,
    first: str,
    classifier: str | list[str],
) -> dict[str, Any]:
    """Entries of timm's `config.json` about images and classes, for any architecture.

    Args:
        first, classifier: timm's names of the first convolution and of the head.
    """
    return {
        "input_size": [fields["in_channels"], *preprocessing.size],
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
        "crop_pct": preprocessing.crop,
        "crop_mode": {"cover": "center", "squash": "squash", "pad": "border"}[preprocessing.resize],
        "interpolation": preprocessing.interpolation,
        "num_classes": fields["num_classes"],
        "label_names": list(class_names),
        "first_conv": first,
        "classifier": classifier,
    }


def mlp_ratio(hidden: int, width: int) -> float:
    """Return the ratio from which timm computes an MLP's hidden width by truncation."""
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else math.nextafter(ratio, math.inf)


# ----------------------------------------------------------------------------------------- inside


def _check_arguments(fields: Mapping[str, Any]) -> None:
    """Raise UserError for a model that timm's arguments cannot describe."""
    plain = not fields["distilled"] and fields["mlp"] == "plain"
    needed = {
        "norm_eps": 1e-5 if plain and fields["norm_eps"] == 1e-5 else 1e-6,
        "norm_order": "pre",
        "positions": "learned",
        "pos_combine": "add",
        "representation_size": None,
        "head_dim": None,
        "patch_bias": not fields["embed_norm"],
    }
    if fields["pool"] not in POOLS:
        needed["pool"] = "cls"
    if fields["distilled"]:
        needed |= {"registers": 0, "pos_on_cls": True, "embed_norm": False, "mlp": "plain"}
    elif fields["pool"] == "map":  # its MLP would be as wide as both halves
        needed["mlp"] = "plain"
    for name, value in needed.items():
        if fields[name] != value:
            raise UserError(
                f"timm's config.json does not support {name} = {fields[name]!r}, only {value!r}; "
                "use --to=huggingface, or keep the run folder"
            )
    need_plain_vit("timm's config.json", fields, {*needed, *_WRITTEN})


def _arguments(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of timm's VisionTransformer."""
    arguments = {
        "img_size": fields["image_size"],
        "patch_size": fields["patch_size"],
        "in_chans": fields["in_channels"],
        "embed_dim": fields["width"],
        "depth": fields["depth"],
        "num_heads": fields["heads"],
        "mlp_ratio": _mlp_ratio(fields),
        "qkv_bias": fields["qkv_bias"],
        "qk_norm": fields["qk_norm"],
        "init_values": fields["layer_scale"],
        "pre_norm": fields["embed_norm"],
    }
    if fields["activation"] != "gelu":
        arguments["act_layer"] = fields["activation"]
    if fields["distilled"]:  # timm's class for it has no other pooling
        return arguments
    registers = fields["registers"]
    return {
        **arguments,
        "global_pool": POOLS[fields["pool"]],
        "class_token": fields["class_token"],
        "reg_tokens": registers,
        "no_embed_class": not fields["pos_on_cls"] or registers > 0,
        "fc_norm": fields["pool_norm"] == "after",
    }


def _mlp_ratio(fields: Mapping[str, Any]) -> float:
    """Return the MLP ratio of a ViT for timm; of a gated MLP, that of both halves."""
    return mlp_ratio(fields["mlp_width"] * (2 if fields["mlp"] == "swiglu" else 1), fields["width"])
