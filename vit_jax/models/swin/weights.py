"""Weights of Swin: names of timm, of the authors' repository, and of Hugging Face.

Notable:
- timm 1.0 has the merging of patches at the beginning of a stage, as it is here; the authors and
  transformers at the end of the stage before. `normalize_names` makes one of them.
- The number of heads stands in the tables of relative positions, and so does the window: a table of
  a square window is a square of odd sides. Which image size the tables are for stands nowhere in
  most files; by default it is the one whose last map is one window: 224 pixels for
  window 7, 384 for 12.
- All of them pad maps that windows do not fill and let tokens attend to that padding; timm pads
  after the roll besides. Here padding is masked: numbers are theirs where nothing is padded.

Source of the names and facts: timm 1.0, `SwinTransformer`; microsoft/Swin-Transformer,
`models/swin_transformer.py` and `data/build.py`; transformers 5.24, `SwinModel`; by running them.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.registry import MODELS
from vit_jax.models.validation import pair
from vit_jax.models.vit.weights import hugging_face
from vit_jax.weights.ecosystems import processors, timm_arguments, timm_writing
from vit_jax.weights.ecosystems.hugging_face_writing import ACTIVATIONS
from vit_jax.weights.formats import (
    IMAGENET,
    CheckpointFormat,
    Hints,
    ModelSpec,
    Origin,
    axes_of,
    choose_origin,
    configured_section,
    configured_size,
    count_blocks,
    need,
    side_or_pair,
)
from vit_jax.weights.mapping import (
    CONV,
    OUT_KERNEL,
    QKV_BIAS,
    QKV_KERNEL,
    SAME,
    SPLIT_QKV_BIAS,
    SPLIT_QKV_KERNEL,
    Row,
    Tensors,
    layer_norm,
    linear,
)

_OURS, _TIMM, _HUGGING_FACE = (
    "stages_{i}/blocks_{j}",
    "layers.{i}.blocks.{j}",
    "encoder.layers.{i}.blocks.{j}",
)

TIMM_ROWS = (
    *linear("patch_embed", "patch_embed.proj", CONV),
    *layer_norm("pre_norm", "patch_embed.norm"),
    *layer_norm("stages_{i}/downsample/norm", "layers.{i}.downsample.norm"),
    linear("stages_{i}/downsample/reduction", "layers.{i}.downsample.reduction")[0],
    *layer_norm(f"{_OURS}/norm1", f"{_TIMM}.norm1"),
    Row(f"{_OURS}/attn/qkv/kernel", f"{_TIMM}.attn.qkv.weight", QKV_KERNEL),
    Row(f"{_OURS}/attn/qkv/bias", f"{_TIMM}.attn.qkv.bias", QKV_BIAS),
    Row(f"{_OURS}/attn/relative_bias", f"{_TIMM}.attn.relative_position_bias_table", SAME),
    *linear(f"{_OURS}/attn/out", f"{_TIMM}.attn.proj", OUT_KERNEL),
    *layer_norm(f"{_OURS}/norm2", f"{_TIMM}.norm2"),
    *linear(f"{_OURS}/mlp/fc1", f"{_TIMM}.mlp.fc1"),
    *linear(f"{_OURS}/mlp/fc2", f"{_TIMM}.mlp.fc2"),
    *layer_norm("norm", "norm"),
    *linear("head", "head.fc"),
    *linear("head", "head"),  # the authors', and timm before 0.9
)

HUGGING_FACE_ROWS = (
    *linear("patch_embed", "embeddings.patch_embeddings.projection", CONV),
    *layer_norm("pre_norm", "embeddings.norm"),
    *layer_norm("stages_{i}/downsample/norm", "encoder.layers.{i}.downsample.norm"),
    linear("stages_{i}/downsample/reduction", "encoder.layers.{i}.downsample.reduction")[0],
    *layer_norm(f"{_OURS}/norm1", f"{_HUGGING_FACE}.layernorm_before"),
    *(
        Row(
            f"{_OURS}/attn/qkv/{ours}",
            tuple(
                f"{_HUGGING_FACE}.attention.self.{q}.{theirs}" for q in ("query", "key", "value")
            ),
            layout,
        )
        for ours, theirs, layout in (
            ("kernel", "weight", SPLIT_QKV_KERNEL),
            ("bias", "bias", SPLIT_QKV_BIAS),
        )
    ),
    Row(
        f"{_OURS}/attn/relative_bias",
        f"{_HUGGING_FACE}.attention.self.relative_position_bias_table",
        SAME,
    ),
    *linear(f"{_OURS}/attn/out", f"{_HUGGING_FACE}.attention.output.dense", OUT_KERNEL),
    *layer_norm(f"{_OURS}/norm2", f"{_HUGGING_FACE}.layernorm_after"),
    *linear(f"{_OURS}/mlp/fc1", f"{_HUGGING_FACE}.intermediate.dense"),
    *linear(f"{_OURS}/mlp/fc2", f"{_HUGGING_FACE}.output.dense"),
    *layer_norm("norm", "layernorm"),
    *linear("head", "classifier"),
)

# Names that no model needs: regular expression, and what it is.
IGNORED = {
    r".*\.(relative_position_index|attn_mask)": "computed from the window, not learned",
    r"embeddings\.mask_token|mask_token": "the token in place of hidden patches, for pre-training",
    r"decoder\..*": "the decoder of pre-training by hidden patches",
}

_FIELDS = {"norm_eps": 1e-5, "activation": "gelu", "pos_resize": "torch-bicubic"}

TIMM_ORIGINS = {
    "timm": Origin(
        _FIELDS,
        {**IMAGENET, "crop": 0.9, "interpolation": "bicubic"},
        "timm's defaults for `swin_*`, where no config.json says otherwise",
    ),
    "swin": Origin(
        _FIELDS,
        {**IMAGENET, "crop": 224 / 256, "interpolation": "bicubic"},
        "microsoft/Swin-Transformer: data/build.py, configs/swin",
    ),
}
HUGGING_FACE_ORIGINS = {
    "swin": Origin(
        _FIELDS,
        {**IMAGENET, "crop": 1.0, "interpolation": "bicubic", "resize": "squash"},
        "the preprocessor_config.json of microsoft/swin-tiny-patch4-window7-224",
    ),
}
# Arguments of timm's class that are read, or that change nothing at the model's own size.
_READ = (
    *("patch_size", "embed_dim", "depths", "num_heads", "window_size", "mlp_ratio", "qkv_bias"),
    *("strict_img_size", "dynamic_img_size", "act_layer"),
)


def describe_timm(tensors: Tensors, config: Mapping[str, Any] | None, hints: Hints) -> ModelSpec:
    """Return the spec of a file with timm's or the authors' names; expects normalized names."""
    config = config or {}
    arguments = configured_section(config, "model_args")
    pretrained = timm_arguments.pretrained_of(config)
    as_authors = any(name.endswith((".relative_position_index", ".attn_mask")) for name in tensors)
    found = "swin" if as_authors and "architecture" not in config else "timm"
    origin_name, origin = choose_origin(hints, TIMM_ORIGINS, found)
    for name, needed in (("act_layer", "gelu"), ("global_pool", "avg")):
        if arguments.get(name, needed) != needed:
            raise UserError(
                f"config.json: {name} = {arguments[name]!r}, and Swin has {needed!r} here"
            )
    timm_arguments.check_plain(config, _READ, {"always_partition": (False,)})
    size = timm_arguments.with_size(hints, config).image_size or _size_of_mask(tensors)
    head = next((n for n in ("head.fc.weight", "head.weight") if n in tensors), None)
    fields = _fields(
        tensors,
        projection="patch_embed.proj.weight",
        block=_TIMM,
        names=("norm1.weight", "mlp.fc1.weight", "attn.qkv.bias"),
        head=head,
        window=configured_size(arguments, "window_size"),
        image_size=size,
    )
    preprocessing = dict(origin.preprocessing)
    if pair(fields["image_size"]) == (384, 384):
        preprocessing["crop"] = 1.0
        if origin_name == "swin":  # TEST.CROP of its configurations for 384 pixels is False
            preprocessing["resize"] = "squash"
    preprocessing |= timm_arguments.preprocessing_of(
        arguments, pretrained, pair(fields["patch_size"])
    )
    names = timm_arguments.label_names(config, fields["num_classes"])
    return ModelSpec({**fields, **origin.fields}, preprocessing, origin_name, names)


def describe_hugging_face(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: Hints
) -> ModelSpec:
    """Return the spec of a file with the names of transformers; expects normalized names."""
    config = config or {}
    if config.get("model_type", "swin") != "swin":
        raise UserError(f"config.json: model_type = {config['model_type']!r} is not Swin")
    origin_name, origin = choose_origin(hints, HUGGING_FACE_ORIGINS)
    if "embeddings.position_embeddings" in tensors:
        raise UserError("the file has positions besides the relative ones, which Swin has not here")
    eps = config.get("layer_norm_eps", 1e-5)
    if eps != 1e-5:  # the norms of patches have torch's own in any case
        raise UserError(f"config.json: layer_norm_eps = {eps!r}, and Swin's norms share 1e-05 here")
    fields = _fields(
        tensors,
        projection="embeddings.patch_embeddings.projection.weight",
        block=_HUGGING_FACE,
        names=(
            "layernorm_before.weight",
            "intermediate.dense.weight",
            "attention.self.query.bias",
        ),
        head="classifier.weight" if "classifier.weight" in tensors else None,
        window=configured_size(config, "window_size"),
        image_size=hints.image_size or configured_size(config, "image_size"),
    )
    fields |= {**origin.fields, "activation": hugging_face.activation_of(config)}
    _check_shifts(fields)
    preprocessing = dict(origin.preprocessing)
    preprocessing |= processors.read(
        config.get("preprocessor") or {}, pair(fields["patch_size"]), "swin"
    )
    names = hugging_face.class_names_of(config) if fields["num_classes"] else None
    return ModelSpec(fields, preprocessing, origin_name, names)


def tidy_timm(tensors: Tensors) -> Tensors:
    """Move patch merging to the beginning of the following stage."""
    if "layers.0.downsample.reduction.weight" not in tensors:
        return tensors
    return {_moved(name, 1): array for name, array in tensors.items()}


def tidy_hugging_face(tensors: Tensors) -> Tensors:
    """The same; and names as they are in files, without what stands for the class of the model."""
    tidied = {}
    for name, array in tensors.items():
        short = name.removeprefix("swin.")
        for theirs, on_disk in _IN_MEMORY.items():
            short = re.sub(theirs, on_disk, short)
        tidied[_moved(short, 1)] = array
    return tidied


def finish_hugging_face(
    tensors: dict[str, np.ndarray], fields: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Return the names of transformers' class."""
    prefix = "swin." if fields["num_classes"] else ""
    return {
        name if name.startswith("classifier.") else prefix + _moved(name, -1): array
        for name, array in tensors.items()
    }


def timm_config(
    fields: Mapping[str, Any], preprocessing: Preprocessing, class_names
) -> dict[str, Any]:
    """The `config.json` with which timm makes the model: `timm.create_model("local-dir:FOLDER")`.

    Raises UserError where timm has no argument for a field.
    """
    need("timm", fields, {"norm_eps": 1e-5, "activation": "gelu"}, " of a Swin")
    arguments = {
        "img_size": fields["image_size"],
        "patch_size": fields["patch_size"],
        "in_chans": fields["in_channels"],
        "embed_dim": fields["width"],
        "depths": list(fields["depths"]),
        "num_heads": list(fields["heads"]),
        "window_size": fields["window"],
        "mlp_ratio": fields["mlp_ratio"],
        "qkv_bias": fields["qkv_bias"],
    }
    if preprocessing.size != pair(fields["image_size"]):
        arguments["dynamic_img_size"] = True
    return {
        "architecture": "swin_tiny_patch4_window7_224",
        "num_classes": fields["num_classes"],
        "model_args": arguments,
        "pretrained_cfg": timm_writing.pretrained_cfg(
            fields, preprocessing, class_names, first="patch_embed.proj", classifier="head.fc"
        ),
    }


def hugging_face_config(
    fields: Mapping[str, Any], preprocessing: Preprocessing, class_names
) -> dict[str, Any]:
    """The `config.json` with which transformers makes the model: `AutoModel.from_pretrained`.

    Raises UserError where transformers has no model for a field.
    """
    need("transformers", fields, {"norm_eps": 1e-5}, " of a Swin")
    for field in ("window", "patch_size"):
        if len(set(pair(fields[field]))) > 1:
            raise UserError(f"transformers has no Swin with {field} = {fields[field]!r}, a square")
    _check_shifts(fields)
    names = {str(i): name for i, name in enumerate(class_names[: fields["num_classes"]])}
    written = {
        "architectures": ["SwinForImageClassification" if names else "SwinModel"],
        "model_type": "swin",
        "embed_dim": fields["width"],
        "depths": list(fields["depths"]),
        "num_heads": list(fields["heads"]),
        "window_size": pair(fields["window"])[0],
        "mlp_ratio": fields["mlp_ratio"],
        "qkv_bias": fields["qkv_bias"],
        "hidden_act": next(k for k, v in ACTIVATIONS.items() if v == fields["activation"]),
        "layer_norm_eps": fields["norm_eps"],
        "image_size": fields["image_size"],
        "patch_size": pair(fields["patch_size"])[0],
        "num_channels": fields["in_channels"],
        "use_absolute_embeddings": False,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "drop_path_rate": 0.0,
        "dtype": "float32",
    }
    if names:
        written |= {"id2label": names, "label2id": {name: int(i) for i, name in names.items()}}
    return written


# ----------------------------------------------------------------------------------------- inside

# From the names that transformers 5 has in memory to those in files.
_IN_MEMORY = {
    r"\.attention\.([qkv])_proj\.": lambda match: f".attention.self.{_QKV[match[1]]}.",
    r"\.attention\.o_proj\.": ".attention.output.dense.",
    r"\.attention\.relative_position_bias\.": ".attention.self.",
    r"\.mlp\.fc1\.": ".intermediate.dense.",
    r"\.mlp\.fc2\.": ".output.dense.",
}
_QKV = {"q": "query", "k": "key", "v": "value"}


def _moved(name: str, by: int) -> str:
    """A name of the merging of patches as of another stage; other names as they are."""
    return re.sub(
        r"(?<=layers\.)(\d+)(?=\.downsample\.)", lambda match: str(int(match[1]) + by), name
    )


def _fields(
    tensors: Tensors,
    *,
    projection: str,
    block: str,
    names: tuple[str, str, str],
    head: str | None,
    window: tuple[int, int] | None,
    image_size: tuple[int, int] | None,
) -> dict[str, Any]:
    """Fields of the model, but for what an origin says.

    names: within a block, of the first norm, of the MLP's first layer and of the bias of queries.
    window, image_size: from the configuration or the hints, if known.
    """
    norm1, fc1, qkv_bias = names
    table = next(row.theirs for row in _rows_of(block) if row.ours.endswith("relative_bias"))
    width, in_channels, *patch = axes_of(tensors, projection, "out, in, height, width")
    stages = count_blocks(
        tensors, re.escape(f"{block}.{norm1}").replace(r"\{i\}", r"(\d+)").replace(r"\{j\}", "0")
    )
    depths, heads, sides = [], [], []
    for i in range(stages):
        pattern = re.escape(f"{block}.{norm1}").replace(r"\{i\}", str(i))
        depths.append(count_blocks(tensors, pattern.replace(r"\{j\}", r"(\d+)")))
        rows, of_stage = axes_of(tensors, table.format(i=i, j=0), "offsets, heads")
        heads.append(of_stage)
        sides.append((math.isqrt(rows) + 1) // 2)
        if window is None and (2 * sides[-1] - 1) ** 2 != rows:
            raise UserError(
                f"{table.format(i=i, j=0)} has {rows} rows, which no square window has; a "
                "config.json with the window has to lie beside the file"
            )
    hidden = axes_of(tensors, f"{block}.{fc1}".format(i=0, j=0), "out, in")[0]
    last = window or (sides[-1], sides[-1])
    if image_size is None:
        image_size = tuple(w * p * 2 ** (stages - 1) for w, p in zip(last, patch, strict=True))
    return {
        "num_classes": axes_of(tensors, head, "out, in")[0] if head else 0,
        "image_size": side_or_pair(image_size),
        "patch_size": side_or_pair(tuple(patch)),
        "in_channels": in_channels,
        "width": width,
        "depths": tuple(depths),
        "heads": tuple(heads),
        # Of a stage with a map smaller than the window the table is smaller.
        "window": side_or_pair(window) if window else max(sides),
        "mlp_ratio": hidden / width,
        "qkv_bias": f"{block}.{qkv_bias}".format(i=0, j=0) in tensors,
    }


def _rows_of(block: str) -> tuple[Row, ...]:
    return TIMM_ROWS if block == _TIMM else HUGGING_FACE_ROWS


def _size_of_mask(tensors: Tensors) -> tuple[int, int] | None:
    """Return the image size of the authors' mask of the first stage, for square images."""
    mask = tensors.get("layers.0.blocks.1.attn_mask")
    if mask is None or mask.ndim != 3:
        return None
    patch = axes_of(tensors, "patch_embed.proj.weight", "out, in, height, width")[2:]
    side = math.isqrt(mask.shape[0]) * math.isqrt(mask.shape[1])
    return side * patch[0], side * patch[1]


def _check_shifts(fields: Mapping[str, Any]) -> None:
    """Raise UserError where transformers would shift windows otherwise.

    It has tables of the whole window in every stage, and where one axis of a map is no longer than
    the window, it shifts neither.
    """
    model = MODELS["Swin"].architecture(**fields)
    for grid in model.grids():
        covered = [side <= w for side, w in zip(grid, pair(fields["window"]), strict=True)]
        larger = any(side < w for side, w in zip(grid, pair(fields["window"]), strict=True))
        if larger or (any(covered) and not all(covered)):
            raise UserError(
                f"with images of {fields['image_size']} pixels a stage has a map of {grid[0]} x "
                f"{grid[1]} tokens; transformers' Swin computes something else with a window of "
                f"{fields['window']!r} there"
            )


FORMATS = (
    CheckpointFormat(
        name="timm",
        signature=(
            r"patch_embed\.proj\.weight",
            r"layers\.0\.blocks\.0\.attn\.relative_position_bias_table",
        ),
        rows=TIMM_ROWS,
        describe=describe_timm,
        ignored=IGNORED,
        normalize_names=tidy_timm,
        config=timm_config,
        architecture="Swin",
    ),
    CheckpointFormat(
        name="huggingface",
        signature=(
            r"embeddings\.patch_embeddings\.projection\.weight",
            r"encoder\.layers\.0\.blocks\.0\.attention\.self\.relative_position_bias_table",
        ),
        rows=HUGGING_FACE_ROWS,
        describe=describe_hugging_face,
        ignored=IGNORED,
        normalize_names=tidy_hugging_face,
        finish=finish_hugging_face,
        config=hugging_face_config,
        preprocessor=processors.write,
        architecture="Swin",
    ),
)
