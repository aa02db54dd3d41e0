"""Weights of Google's ViTs: the 2020 paper, AugReg, SAM, and big_vision with its SigLIP towers.

They are `.npz` files whose names are the paths of a Flax model, so that most arrays need no
transposition and the heads of attention have an axis. They differ in:

- Numbers. Before linen all layers of a block were counted together (`LayerNorm_0`,
  `MultiHeadDotProductAttention_1`, `LayerNorm_2`, `MlpBlock_3`), since then each kind apart.
- Positions. The 2020 code puts the class token in front and then adds a table with a row for it;
  big_vision adds a table of patches before, or fixed sine-cosine positions that are in no file.
- Blocks. One by one, or stacked under `encoderblock` with a leading axis of depth.
- A prefix, beside the state of an optimizer (`params/`) or a text tower (`params/img/`).

MLP-Mixers have names of their own and are read in `mixer`; `hybrid` adds those of a ResNet.

Sources: the repositories google-research/vision_transformer (Dosovitskiy et al. 2021; Steiner et
al. 2022, "How to train your ViT?"; Chen et al. 2022, SAM) and google-research/big_vision (Beyer et
al. 2022, "Better plain ViT baselines"; Zhai et al. 2023, SigLIP).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from vit_jax.errors import UserError
from vit_jax.models.flexivit import weights as flexivit
from vit_jax.weights import formats
from vit_jax.weights.mapping import LINEN_QKV_BIAS, LINEN_QKV_KERNEL, SAME, Row, Tensors


def _layer(ours: str, theirs: str) -> tuple[Row, Row]:
    return (
        Row(f"{ours}/kernel", f"{theirs}/kernel", SAME),
        Row(f"{ours}/bias", f"{theirs}/bias", SAME),
    )


def _norm(ours: str, theirs: str) -> tuple[Row, Row]:
    return (
        Row(f"{ours}/scale", f"{theirs}/scale", SAME),
        Row(f"{ours}/bias", f"{theirs}/bias", SAME),
    )


def _attention(ours: str, theirs: str) -> tuple[Row, ...]:
    def names(part: str) -> tuple[str, ...]:
        return tuple(f"{theirs}/{of}/{part}" for of in ("query", "key", "value"))

    return (
        Row(f"{ours}/qkv/kernel", names("kernel"), LINEN_QKV_KERNEL),
        Row(f"{ours}/qkv/bias", names("bias"), LINEN_QKV_BIAS),
        *_layer(f"{ours}/out", f"{theirs}/out"),
    )


def _mlp(ours: str, theirs: str) -> tuple[Row, ...]:
    return (
        *_layer(f"{ours}/fc1", f"{theirs}/Dense_0"),
        *_layer(f"{ours}/fc2", f"{theirs}/Dense_1"),
    )


def _block(attention: int, norm2: int, mlp: int) -> tuple[Row, ...]:
    ours, theirs = "blocks_{i}", "Transformer/encoderblock_{i}"
    return (
        *_norm(f"{ours}/norm1", f"{theirs}/LayerNorm_0"),
        *_attention(f"{ours}/attn", f"{theirs}/MultiHeadDotProductAttention_{attention}"),
        *_norm(f"{ours}/norm2", f"{theirs}/LayerNorm_{norm2}"),
        *_mlp(f"{ours}/mlp", f"{theirs}/MlpBlock_{mlp}"),
    )


ROWS = (
    *_layer("patch_embed", "embedding"),
    Row("cls_token", "cls", SAME),
    Row("pos_embed", "Transformer/posembed_input/pos_embedding", SAME),
    Row("pos_embed", "Transformer/pos_embedding", SAME),  # big_vision before 2022
    Row("pos_embed", "pos_embedding", SAME),  # big_vision
    *_block(attention=0, norm2=1, mlp=0),  # linen
    *_block(attention=1, norm2=2, mlp=3),  # before
    *_norm("norm", "Transformer/encoder_norm"),
    Row("map_head/probe", "MAPHead_0/probe", SAME),
    *_attention("map_head/attn", "MAPHead_0/MultiHeadDotProductAttention_0"),
    *_norm("map_head/norm", "MAPHead_0/LayerNorm_0"),
    *_mlp("map_head/mlp", "MAPHead_0/MlpBlock_0"),
    *_layer("pre_logits", "pre_logits"),
    *_layer("head", "head"),
)

# flax's GELU is the one with tanh, and SciPy's zoom of order 1 resizes positions in both.
_FLAX = {"activation": "gelu_tanh", "norm_eps": 1e-6, "pos_resize": "corner-bilinear"}

ORIGINS = {
    "google": formats.Origin(
        _FLAX,
        {**formats.HALF, "crop": 1.0, "interpolation": "bilinear", "resize": "squash"},
        "vision_transformer: input_pipeline.py, which does not antialias",
    ),
    "big_vision": formats.Origin(
        _FLAX,
        {**formats.HALF, "crop": 0.875, "interpolation": "bilinear"},
        "big_vision: configs/vit_s16_i1k.py, the shorter side at 256 and the central 224 pixels "
        "(its kernel is the mean of an area)",
    ),
    "flexivit": formats.Origin(
        _FLAX,
        flexivit.PREPROCESSING,
        "big_vision: configs/proj/flexivit (Beyer et al. 2023)",
    ),
    "siglip": formats.Origin(
        _FLAX,
        {**formats.HALF, "crop": 1.0, "interpolation": "bilinear", "resize": "squash"},
        "big_vision: configs/proj/image_text",
    ),
}

# Ignored names: regular expression and description.
IGNORED = {
    r"opt/.*": "the state of the optimizer",
    r"chrono/.*": "how long training took",
    r"(params/)?txt/.*": "SigLIP's text tower",
    r"(params/)?[tb]": "temperature and bias of SigLIP's loss",
}

# Possible prefixes of all names of the model; the first with an embedding counts.
_PREFIXES = ("", "params/", "params/img/", "img/", "opt/target/")
_STACKED = "Transformer/encoderblock/"
MOST_STACKED = 100  # tensors of a block; unstacking more would take too long


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a Google file; expects normalized names."""
    name, origin = formats.choose_origin(hints, *_candidates(tensors))
    *patch, in_channels, width = formats.axes_of(
        tensors, "embedding/kernel", "height, width, in, out"
    )
    depth = formats.count_blocks(tensors, r"Transformer/encoderblock_(\d+)/LayerNorm_0/scale")
    query, hidden = _first_block(tensors)
    heads, head_dim = formats.axes_of(tensors, f"{query}/kernel", "width, heads, head_dim")[1:]
    if hints.heads not in (None, heads):
        raise UserError(
            f"--heads={hints.heads} contradicts the file, which has {heads} heads; remove --heads"
        )
    has_class, has_map = "cls" in tensors, "MAPHead_0/probe" in tensors
    positions, prefix, image_size = _positions(tensors, has_class, tuple(patch), hints)
    classes = (
        formats.axes_of(tensors, "head/kernel", "in, out")[1] if "head/kernel" in tensors else 0
    )
    fields = {
        "num_classes": classes,
        "image_size": formats.side_or_pair(image_size),
        "patch_size": formats.side_or_pair(tuple(patch)),
        "in_channels": in_channels,
        "width": width,
        "depth": depth,
        "heads": heads,
        "mlp_width": hidden,
        "mlp": "plain",
        "pool": "map" if has_map else "cls" if has_class else "mean",
        "class_token": has_class,
        "distilled": False,
        "registers": 0,
        "positions": positions,
        "pos_on_cls": prefix > 0,
        "patch_bias": "embedding/bias" in tensors,
        "qkv_bias": f"{query}/bias" in tensors,
        **origin.fields,
    }
    if heads * head_dim != width:
        fields["head_dim"] = head_dim
    if "pre_logits/kernel" in tensors:
        fields["representation_size"] = formats.axes_of(tensors, "pre_logits/kernel", "in, out")[1]
    notes = ()
    if classes and formats.all_zero(tensors["head/kernel"]):
        notes = (
            f"the head of {classes} outputs is all zeros, as in files that are meant for "
            "fine-tuning, so that its outputs are meaningless; set num_classes for a new head, or "
            "use the features",
        )
    spec = formats.ModelSpec(fields, dict(origin.preprocessing), name, notes=notes)
    if name == "flexivit":
        return flexivit.published(spec)
    if name == "big_vision" and hints.origin is None:
        return dataclasses.replace(spec, notes=(*notes, *flexivit.note(spec)))
    return spec


def normalize_names(tensors: Tensors) -> Tensors:
    """Remove prefixes from names, and unstack blocks."""
    prefix = next((p for p in _PREFIXES if f"{p}embedding/kernel" in tensors), "")
    few = sum(name.startswith(prefix + _STACKED) for name in tensors) <= MOST_STACKED
    normalized = {}
    for name, array in tensors.items():
        name = name.removeprefix(prefix)
        if name in normalized:
            raise UserError(f"the file has {name} twice, with and without {prefix} in front")
        apart = few and array.ndim and len(array) <= formats.MOST_BLOCKS
        if name.startswith(_STACKED) and apart:
            rest = name.removeprefix(_STACKED)
            numbered = {f"{_STACKED[:-1]}_{i}/{rest}": block for i, block in enumerate(array)}
            normalized |= numbered
        else:
            normalized[name] = array
    return normalized


# ----------------------------------------------------------------------------------------- inside


def _candidates(tensors: Tensors) -> tuple[dict[str, formats.Origin], str | None]:
    """Return the origins that fit, and the certain one, if any."""
    if "Transformer/posembed_input/pos_embedding" in tensors:
        return {"google": ORIGINS["google"]}, "google"
    fitting = {name: ORIGINS[name] for name in ("big_vision", "siglip")}
    if "cls" in tensors and "pos_embedding" in tensors:
        fitting["flexivit"] = ORIGINS["flexivit"]
    two_towers = any(name.startswith(("txt/", "params/txt/")) for name in tensors)
    tower = "MAPHead_0/probe" in tensors and "head/kernel" not in tensors
    return fitting, "siglip" if two_towers or tower else "big_vision"


def _first_block(tensors: Tensors) -> tuple[str, int]:
    """Return the name of the query in block 0, and the hidden width of the MLP."""
    block = "Transformer/encoderblock_0"
    for attention, mlp in ((0, 0), (1, 3)):
        query = f"{block}/MultiHeadDotProductAttention_{attention}/query"
        hidden = f"{block}/MlpBlock_{mlp}/Dense_0/kernel"
        if f"{query}/kernel" in tensors and hidden in tensors:
            formats.axes_of(tensors, hidden, "in, out")
            pattern = hidden.replace("encoderblock_0", r"encoderblock_\d+")
            return query, formats.most_common_side(tensors, pattern, 1)
    raise UserError(
        f"the file has no attention or no MLP under {block}, or their numbers are neither 0 and 0 "
        "nor 1 and 3: it is incomplete"
    )


def _positions(
    tensors: Tensors, has_class: bool, patch: tuple[int, int], hints: formats.Hints
) -> tuple[str, int, tuple[int, int]]:
    """Return the position type, the number of rows for the class token, and the image size."""
    names = [name for row in ROWS if row.ours == "pos_embed" for name in row.names("pos_embed")]
    table = next((name for name in names if name in tensors), None)
    if table is not None:
        rows = formats.axes_of(tensors, table, "1, rows, width")[1]
        return "learned", *formats.position_grid(rows, (1, 0) if has_class else (0,), patch, hints)
    if hints.image_size is None:
        raise UserError(
            "the file has no position table, so its positions are big_vision's fixed ones, which "
            "do not depend on the image size; use --file-size=HEIGHTxWIDTH, 224x224 for the "
            "published ViT-S/16"
        )
    return "sincos2d_big_vision", 0, hints.image_size


FORMAT = formats.CheckpointFormat(
    name="google",
    signature=(r"embedding/kernel", r"Transformer/encoder_norm/scale"),
    rows=ROWS,
    describe=describe,
    ignored=IGNORED,
    normalize_names=normalize_names,
)
