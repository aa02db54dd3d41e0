"""Weights of ViTDet: transformers' `vitdet`, read and written, and detectron2's, read.

- transformers has the ViT without the pyramid. detectron2's files are those of whole detectors, of
  which the backbone is read.
- Without a configuration the tables of relative positions say which blocks have windows: those with
  shorter tables. The longer ones are for the images that the model was trained with.

Sources: transformers 5.24, `VitDetModel`, by running it; detectron2, `modeling/backbone/vit.py` and
`projects/ViTDet/configs/COCO/mask_rcnn_vitdet_b_100ep.py`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.fields import pair
from vit_jax.models.vit.weights import hugging_face
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import convolutions, plain_vit, processors
from vit_jax.weights.ecosystems.hugging_face_writing import activation_name
from vit_jax.weights.mapping import (
    CONV,
    OUT_KERNEL,
    QKV_BIAS,
    QKV_KERNEL,
    SAME,
    TRANSPOSED_CONV,
    Row,
    Tensors,
    layer_norm,
    linear,
)

# transformers' names, of which detectron2 has others.
_TABLE, _PATCHES = "embeddings.position_embeddings", "embeddings.projection.weight"
_OFFSETS = "encoder.layer.{}.attention.rel_pos_{}"
_BLOCK = "encoder.layer.{i}"
_TO_TRANSFORMERS = {
    "net.pos_embed": _TABLE,
    "net.patch_embed.proj.": "embeddings.projection.",
    "net.blocks.": "encoder.layer.",
    ".attn.": ".attention.",
}

ROWS = (
    *linear("patch_embed", "embeddings.projection", CONV),
    Row("pos_embed", _TABLE, SAME),
    *layer_norm("blocks_{i}/norm1", f"{_BLOCK}.norm1"),
    Row("blocks_{i}/attn/qkv/kernel", f"{_BLOCK}.attention.qkv.weight", QKV_KERNEL),
    Row("blocks_{i}/attn/qkv/bias", f"{_BLOCK}.attention.qkv.bias", QKV_BIAS),
    *linear("blocks_{i}/attn/out", f"{_BLOCK}.attention.proj", OUT_KERNEL),
    Row("blocks_{i}/attn/relative_rows", f"{_BLOCK}.attention.rel_pos_h", SAME),
    Row("blocks_{i}/attn/relative_columns", f"{_BLOCK}.attention.rel_pos_w", SAME),
    *layer_norm("blocks_{i}/norm2", f"{_BLOCK}.norm2"),
    *linear("blocks_{i}/mlp/fc1", f"{_BLOCK}.mlp.fc1"),
    *linear("blocks_{i}/mlp/fc2", f"{_BLOCK}.mlp.fc2"),
)


def _pyramid_rows() -> Iterable[Row]:
    """Return the rows of detectron2's pyramid, whose layers are numbered."""
    for level, lateral in enumerate((4, 1, 0, 1)):
        ours, theirs = f"pyramid/levels_{level}", f"simfp_{level + 2}"
        if level < 2:
            yield from linear(f"{ours}/enlarge1", f"{theirs}.0", TRANSPOSED_CONV)
        if level == 0:
            yield from layer_norm(f"{ours}/enlarge_norm", f"{theirs}.1")
            yield from linear(f"{ours}/enlarge2", f"{theirs}.3", TRANSPOSED_CONV)
        for name, number in (("lateral", lateral), ("output", lateral + 1)):
            yield Row(f"{ours}/{name}/kernel", f"{theirs}.{number}.weight", CONV)
            yield from layer_norm(f"{ours}/{name}_norm", f"{theirs}.{number}.norm")


ORIGINS = {
    "vitdet": formats.Origin(
        {"norm_eps": 1e-6},
        {**formats.IMAGENET, "interpolation": "bilinear", "crop": 1.0, "resize": "pad"},
        "detectron2's configurations of ViTDet, whose images are padded to a square",
    )
}


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file; expects normalized names."""
    config = config or {}
    origin_name, origin = formats.choose_origin(hints, ORIGINS)
    width, channels, *patch = formats.axes_of(tensors, _PATCHES, "out, in, height, width")
    depth = formats.count_blocks(tensors, r"encoder\.layer\.(\d+)\.norm1\.weight")
    hidden = formats.axes_of(tensors, "encoder.layer.0.mlp.fc1.weight", "out, in")[0]
    hugging_face.check_config(
        config, hidden_size=width, num_hidden_layers=depth, num_channels=channels
    )
    if config.get("residual_block_indices"):
        raise UserError(
            "config.json: residual_block_indices is not empty; convolutions behind blocks are not "
            "supported"
        )
    relative = _OFFSETS.format(0, "h") in tensors
    heads = formats.configured_number(config, "num_attention_heads")
    if relative and heads is None:
        heads = width // formats.axes_of(tensors, _OFFSETS.format(0, "h"), "offsets, head_dim")[1]
    fields = {
        "num_classes": 0,
        "in_channels": channels,
        "patch_size": formats.side_or_pair(tuple(patch)),
        "width": width,
        "depth": depth,
        "heads": formats.need_heads(hints, heads, width),
        "mlp_width": hidden,
        "qkv_bias": "encoder.layer.0.attention.qkv.bias" in tensors,
        "activation": hugging_face.activation_of(config),
        "relative_positions": relative,
        "positions": "learned" if _TABLE in tensors else "none",
        "pyramid_width": _pyramid_width(tensors),
        **_windows(tensors, config, hints, depth, tuple(patch)),
        **origin.fields,
    }
    if _TABLE in tensors:
        rows = formats.axes_of(tensors, _TABLE, "1, rows, width")[1]
        square = formats.Hints(image_size=None)  # the table is one in both libraries
        _, size = formats.position_grid(rows, (1,), tuple(patch), square)
        fields["position_size"] = formats.side_or_pair(size)
    if "layer_norm_eps" in config:
        fields["norm_eps"] = hugging_face.positive_of(config, "layer_norm_eps")
    preprocessing = {**origin.preprocessing, "size": pair(fields["image_size"])}
    preprocessing |= processors.read(config.get("preprocessor") or {}, tuple(patch), "vitdet")
    return formats.ModelSpec(fields, preprocessing, origin_name)


def _windows(
    tensors: Tensors,
    config: Mapping[str, Any],
    hints: formats.Hints,
    depth: int,
    patch: tuple[int, int],
) -> dict[str, Any]:
    """Return the size of the images and the windows of blocks, of a configuration or of tables."""
    size = hints.image_size or formats.configured_size(config, "image_size")
    grids = [_grid_of(tensors, number) for number in range(depth)]
    if None not in grids and size is None:
        size = tuple(side * p for side, p in zip(max(grids), patch, strict=True))
    if size is None:
        raise UserError(
            "the file does not say which blocks have windows; put the config.json of the model "
            "beside it"
        )
    if "window_block_indices" in config:
        windowed = tuple(config["window_block_indices"] or ())
        window = formats.configured_number(config, "window_size") or 0
        windowed = windowed if window else ()
    else:
        whole = tuple(side // p for side, p in zip(size, patch, strict=True))
        windowed = tuple(i for i, grid in enumerate(grids) if grid != whole)
        window = grids[windowed[0]][0] if windowed and grids[windowed[0]] else 0
    found = {
        "image_size": formats.side_or_pair(size),
        "global_blocks": tuple(i for i in range(depth) if i not in windowed),
    }
    return {**found, "window": window} if window else found


def _grid_of(tensors: Tensors, number: int) -> tuple[int, int] | None:
    """Return the grid of a block's tables; None without them."""
    names = [_OFFSETS.format(number, axis) for axis in "hw"]
    if names[0] not in tensors:
        return None
    offsets = (formats.axes_of(tensors, name, "offsets, head_dim")[0] for name in names)
    return tuple((count + 1) // 2 for count in offsets)


def _pyramid_width(tensors: Tensors) -> int | None:
    name = "simfp_4.0.weight"
    if name not in tensors:
        return None
    return formats.axes_of(tensors, name, "out, in, height, width")[0]


def normalize_names(tensors: Tensors) -> Tensors:
    """Remove the prefix of a class around the model."""
    return convolutions.without_prefix(tensors, "vitdet")


def normalize_detectron2(tensors: Tensors) -> Tensors:
    """Return transformers' names of the ViT in detectron2's files."""
    found = {}
    for name, array in tensors.items():
        name = name.removeprefix("backbone.")
        if name.startswith("net."):
            for theirs, new in _TO_TRANSFORMERS.items():
                name = name.replace(theirs, new)
        found[name] = array
    return found


def config(fields: Mapping[str, Any], preprocessing: Preprocessing, class_names) -> dict[str, Any]:
    """Return transformers' `config.json`; UserError for fields that it does not support."""
    del preprocessing, class_names  # its class has neither
    known = (
        "num_classes",
        "class_token",
        "pool",
        "final_norm",
        "positions",
        "pos_resize",
        "activation",
        "qkv_bias",
    )
    plain_vit.need_plain_vit("transformers", fields, (*known, *_WRITTEN))
    needed = {"pyramid_width": None, "num_classes": 0, "final_norm": False}
    formats.need("transformers", fields, needed, " of a ViTDet")
    if fields["positions"] == "sincos2d" or fields["mlp_width"] % fields["width"]:
        raise UserError(
            "transformers' ViTDet has learned positions, and an MLP whose width is a multiple of "
            f"the tokens'; here positions = {fields['positions']!r} and mlp_width = "
            f"{fields['mlp_width']} with width = {fields['width']}; keep the run folder"
        )
    windowed = [i for i in range(fields["depth"]) if i not in fields["global_blocks"]]
    return {
        "model_type": "vitdet",
        "architectures": ["VitDetModel"],
        **{theirs: fields[ours] for ours, theirs in _WRITTEN.items() if theirs},
        "mlp_ratio": fields["mlp_width"] // fields["width"],
        "hidden_act": activation_name(fields["activation"]),
        "qkv_bias": fields["qkv_bias"],
        "use_absolute_position_embeddings": fields["positions"] == "learned",
        "window_block_indices": windowed,
        "window_size": fields["window"] if windowed else 0,
        "residual_block_indices": [],
        "dropout_prob": 0.0,
        "drop_path_rate": 0.0,
        "dtype": "float32",
    }


# Fields of sizes, and transformers' names of those that it has as they are.
_WRITTEN = {
    "image_size": "image_size",
    "position_size": "pretrain_image_size",
    "patch_size": "patch_size",
    "in_channels": "num_channels",
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "heads": "num_attention_heads",
    "norm_eps": "layer_norm_eps",
    "relative_positions": "use_relative_position_embeddings",
    "mlp_ratio": None,
    "mlp_width": None,
}

FORMAT = formats.CheckpointFormat(
    name="huggingface",
    signature=(
        r"embeddings\.projection\.weight",
        r"encoder\.layer\.0\.attention\.qkv\.weight",
    ),
    absent=(r"encoder\.layer\.\d+\.residual\..*",),
    rows=ROWS,
    describe=describe,
    normalize_names=normalize_names,
    config=config,
    model_types=("vitdet",),
    architecture="ViTDet",
)
DETECTRON2 = formats.CheckpointFormat(
    name="detectron2",
    signature=(
        r"encoder\.layer\.0\.attention\.qkv\.weight",
        r"simfp_2\.0\.weight",
    ),
    rows=(*ROWS, *_pyramid_rows()),
    describe=describe,
    ignored={r"(proposal_generator|roi_heads|pixel_(mean|std))(\..*)?": "the rest of the detector"},
    normalize_names=normalize_detectron2,
    architecture="ViTDet",
)
FORMATS = (FORMAT, DETECTRON2)
