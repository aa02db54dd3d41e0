"""timm's classes `Eva` and `Beit`: their arguments in a `config.json`, read and written.

EVA-02, DINOv3 and BEiT are models of these classes. Some of their arguments change the computation
and leave no trace in the tensors, so the name of the architecture decides: the formats list those
that are read, and arguments with other values than theirs are refused.

Source: timm 1.0.31, `eva.py` and `beit.py`, by running them.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import timm_arguments, timm_writing
from vit_jax.weights.ecosystems.plain_vit import need_plain_vit
from vit_jax.weights.ecosystems.timm_writing import POOLS

# Number of heads by width, of the published models of all three families.
_HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1280: 20, 1536: 24, 4096: 32}

# Arguments that the tensors show or that change no number.
_FREE = (
    *("patch_size", "num_heads", "mlp_ratio", "swiglu_mlp", "swiglu_align_to", "qkv_bias"),
    *("qkv_fused", "use_fc_norm", "use_post_transformer_norm", "dynamic_img_size"),
    *("pos_drop_rate", "patch_drop_rate", "strict_img_size"),
)
# Arguments of `Eva` that none of the families changes, with their values.
_OF_EVA = {
    "attn_type": ("eva",),
    "attn_only_layer_scale": (False,),
    "dynamic_img_pad": (False,),
    "no_embed_class": (False,),
    "qk_norm": (False,),
    "rope_grid_indexing": ("ij",),
    "rope_grid_offset": (0,),
    "use_post_norm": (False,),
    "use_pre_transformer_norm": (False,),
    "use_rot_pos_emb": (True,),
}
_READ_POOLS = ("mean", "cls", "none")


def check_arguments(
    config: Mapping[str, Any], fields: Mapping[str, Any], needed: Mapping[str, tuple[Any, ...]]
) -> None:
    """Raise UserError for arguments that contradict the tensors or change the computation.

    Args:
        fields: of the model, from the tensors.
        needed: arguments of the family that the tensors do not show, with the values that are read.
    """
    found = {
        "in_chans": fields["in_channels"],
        "embed_dim": fields["width"],
        "depth": fields["depth"],
        "num_reg_tokens": fields["registers"],
        "class_token": True,
        "init_values": fields["layer_scale"] is not None,
        "scale_mlp": fields["mlp_norm"],
        "scale_attn_inner": fields["attention_norm"],
    }
    pools = tuple(POOLS[name] for name in _READ_POOLS)
    needed = {**_OF_EVA, "global_pool": pools, **needed}
    timm_arguments.check_plain(config, {*_FREE, *found}, needed)
    timm_arguments.check_found(config, found)


def pooling(config: Mapping[str, Any], usual: str) -> str:
    """Return our name of the pooling in the configuration; `usual` if it has none."""
    named = timm_arguments.named_pool(config)
    ours = {POOLS[name]: name for name in _READ_POOLS}
    if named is not None and named not in ours:
        raise UserError(
            f"config.json: global_pool = {named!r} is not supported; use one of "
            f"{', '.join(map(repr, ours))}"
        )
    return ours.get(named, usual)


def heads(config: Mapping[str, Any], hints: formats.Hints, width: int) -> int:
    """Return the number of heads: configured, of the hints, or of published models this wide."""
    arguments = formats.configured_section(config, "model_args")
    configured = formats.configured_number(arguments, "num_heads")
    # With another width timm keeps the number of heads of the architecture.
    if configured is None and hints.heads is None and "embed_dim" not in arguments:
        configured = _HEADS.get(width)
    return formats.need_heads(hints, configured, width)


def preprocessing_of(
    config: Mapping[str, Any], origin: formats.Origin, patch: tuple[int, int]
) -> dict[str, Any]:
    """Return the preprocessing of the configuration; without one, of the origin."""
    arguments = formats.configured_section(config, "model_args")
    pretrained = timm_arguments.pretrained_of(config)
    return {
        **origin.preprocessing,
        **timm_arguments.preprocessing_of(arguments, pretrained, patch),
    }


# ------------------------------------------------------------------------------------- for writing

_WRITTEN = (
    *("num_classes", "image_size", "patch_size", "in_channels", "width", "depth", "heads"),
    *("mlp_width", "mlp", "pool", "pool_norm", "class_token", "layer_scale", "qkv_bias"),
    *("positions", "rotary"),
)


def written(
    fields: Mapping[str, Any],
    preprocessing: Preprocessing,
    class_names: tuple[str, ...],
    *,
    architecture: str,
    arguments: Mapping[str, Any],
    needed: Mapping[str, Any],
    known: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return the `config.json` of a model, for `timm.create_model("local-dir:FOLDER")`.

    Args:
        architecture: a name of timm, of the same class, whose norms have the model's epsilon.
        arguments: those of the family.
        needed: fields with the values that its models have.
        known: further fields that `arguments` writes.

    Raises:
        UserError: timm has no argument for a field.
    """
    library = "timm's config.json"
    needed = {"class_token": True, **needed}
    if fields["pool"] not in _READ_POOLS:
        needed |= {"pool": "mean"}
    if fields["qkv_bias"] is True:  # keys have none
        needed |= {"qkv_bias": "qv"}
    formats.need(library, fields, needed)
    need_plain_vit(library, fields, {*_WRITTEN, *needed, *known}, qkv_bias=bool | str)
    return {
        "architecture": architecture,
        "num_classes": fields["num_classes"],
        "global_pool": POOLS[fields["pool"]],
        "model_args": {
            "img_size": fields["image_size"],
            "patch_size": fields["patch_size"],
            "in_chans": fields["in_channels"],
            "embed_dim": fields["width"],
            "depth": fields["depth"],
            "num_heads": fields["heads"],
            "mlp_ratio": timm_writing.mlp_ratio(fields["mlp_width"], fields["width"]),
            "qkv_bias": bool(fields["qkv_bias"]),
            "init_values": fields["layer_scale"],
            "global_pool": POOLS[fields["pool"]],
            "use_fc_norm": fields["pool_norm"] == "after",
            **arguments,
        },
        "pretrained_cfg": timm_writing.pretrained_cfg(
            fields, preprocessing, class_names, first="patch_embed.proj", classifier="head"
        ),
    }


def finish(
    tensors: dict[str, np.ndarray],
    fields: Mapping[str, Any],
    *,
    split_qkv: bool = False,
    split_gate: bool = False,
) -> dict[str, np.ndarray]:
    """Return the tensors under the names of a model of these fields.

    split_qkv: whether queries, keys and values are separate. split_gate: whether gates and values
    of a gated MLP are.
    """
    written = {}
    for name, array in tensors.items():
        if fields["pool_norm"] == "after":
            name = re.sub(r"^norm\.", "fc_norm.", name)
        names = [name]
        if split_gate and ".mlp.fc1." in name:
            names = [name.replace(".fc1.", f".fc1_{half}.") for half in "gx"]
        elif split_qkv and ".attn.qkv.weight" in name:
            names = [name.replace(".qkv.", f".{one}_proj.") for one in "qkv"]
        elif split_qkv:
            names = [re.sub(r"\.attn\.([qv])_bias$", r".attn.\1_proj.bias", name)]
        written |= dict(zip(names, np.split(array, len(names)), strict=True))
    return written
