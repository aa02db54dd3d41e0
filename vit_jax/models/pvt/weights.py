"""Weights of PVT: the names of transformers, and those of the authors' repository.

- The epsilons differ. The authors leave torch's 1e-5 to norms after a convolution and give 1e-6 to
  the others; transformers has its `layer_norm_eps` in all. Each file gets those of its origin.
- The authors' files contain neither the heads nor the image size. All heads are as wide as those of
  the first stage, whose number is `--heads`; published ones are 64 wide.
- transformers does not support images of another size than that of its tables; here tables are
  resized as in the authors' repository.

Sources: transformers 5.24, `PvtForImageClassification`, by running it; whai362/PVT,
`classification/pvt.py` and `datasets.py` (Wang et al. 2021).
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.registry import MODELS
from vit_jax.models.vit.weights import hugging_face
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import processors
from vit_jax.weights.ecosystems.hugging_face_writing import activation_name, labels_of
from vit_jax.weights.mapping import (
    CONV,
    OUT_KERNEL,
    Q_AND_KV_BIAS,
    Q_AND_KV_KERNEL,
    SAME,
    SPLIT_QKV_BIAS,
    SPLIT_QKV_KERNEL,
    Row,
    Tensors,
    layer_norm,
    linear,
)

_OURS = "stages_{i}/blocks_{j}"
_THEIRS = "encoder.block.{i}.{j}"


def _names(*parts: str, part: str) -> tuple[str, ...]:
    return tuple(f"{name}.{part}" for name in parts)


_SELF = f"{_THEIRS}.attention.self"
_QKV = (f"{_SELF}.query", f"{_SELF}.key", f"{_SELF}.value")

HUGGING_FACE_ROWS = (
    *linear("stages_{i}/patch_embed", "encoder.patch_embeddings.{i}.projection", CONV),
    *layer_norm("stages_{i}/pre_norm", "encoder.patch_embeddings.{i}.layer_norm"),
    Row("stages_{i}/cls_token", "encoder.patch_embeddings.{i}.cls_token", SAME),
    Row("stages_{i}/pos_embed", "encoder.patch_embeddings.{i}.position_embeddings", SAME),
    *layer_norm(f"{_OURS}/norm1", f"{_THEIRS}.layer_norm_1"),
    Row(f"{_OURS}/attn/qkv/kernel", _names(*_QKV, part="weight"), SPLIT_QKV_KERNEL),
    Row(f"{_OURS}/attn/qkv/bias", _names(*_QKV, part="bias"), SPLIT_QKV_BIAS),
    *linear(f"{_OURS}/attn/sr", f"{_SELF}.sequence_reduction", CONV),
    *layer_norm(f"{_OURS}/attn/sr_norm", f"{_SELF}.layer_norm"),
    *linear(f"{_OURS}/attn/out", f"{_THEIRS}.attention.output.dense", OUT_KERNEL),
    *layer_norm(f"{_OURS}/norm2", f"{_THEIRS}.layer_norm_2"),
    *linear(f"{_OURS}/mlp/fc1", f"{_THEIRS}.mlp.dense1"),
    *linear(f"{_OURS}/mlp/fc2", f"{_THEIRS}.mlp.dense2"),
    *layer_norm("norm", "encoder.layer_norm"),
    *linear("head", "classifier"),
)

# The authors', whose stages are counted from 0 here: see `normalize_original`.
_BLOCK = "block.{i}.{j}"
_Q_KV = (f"{_BLOCK}.attn.q", f"{_BLOCK}.attn.kv")

ORIGINAL_ROWS = (
    *linear("stages_{i}/patch_embed", "patch_embed.{i}.proj", CONV),
    *layer_norm("stages_{i}/pre_norm", "patch_embed.{i}.norm"),
    Row("stages_{i}/cls_token", "cls_token", SAME),
    Row("stages_{i}/pos_embed", "pos_embed.{i}", SAME),
    *layer_norm(f"{_OURS}/norm1", f"{_BLOCK}.norm1"),
    Row(f"{_OURS}/attn/qkv/kernel", _names(*_Q_KV, part="weight"), Q_AND_KV_KERNEL),
    Row(f"{_OURS}/attn/qkv/bias", _names(*_Q_KV, part="bias"), Q_AND_KV_BIAS),
    *linear(f"{_OURS}/attn/sr", f"{_BLOCK}.attn.sr", CONV),
    *layer_norm(f"{_OURS}/attn/sr_norm", f"{_BLOCK}.attn.norm"),
    *linear(f"{_OURS}/attn/out", f"{_BLOCK}.attn.proj", OUT_KERNEL),
    *layer_norm(f"{_OURS}/norm2", f"{_BLOCK}.norm2"),
    *linear(f"{_OURS}/mlp/fc1", f"{_BLOCK}.mlp.fc1"),
    *linear(f"{_OURS}/mlp/fc2", f"{_BLOCK}.mlp.fc2"),
    *layer_norm("norm", "norm"),
    *linear("head", "head"),
)

_RESIZE = {"pos_resize": "torch-bilinear"}

HUGGING_FACE_ORIGINS = {
    "pvt": formats.Origin(
        {**_RESIZE, "norm_eps": 1e-6, "embed_norm_eps": 1e-6},
        {**formats.IMAGENET, "crop": 1.0, "interpolation": "bicubic", "resize": "squash"},
        "the defaults of transformers' PvtConfig and PvtImageProcessor",
    )
}
ORIGINAL_ORIGINS = {
    "pvt": formats.Origin(
        {**_RESIZE, "norm_eps": 1e-6, "embed_norm_eps": 1e-5, "activation": "gelu"},
        {**formats.IMAGENET, "crop": 224 / 256, "interpolation": "bicubic"},
        "PVT's repository: classification/pvt.py and datasets.py",
    )
}


def describe_hugging_face(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file with the names of transformers; expects normalized names."""
    config = config or {}
    if config.get("model_type", "pvt") != "pvt":
        raise UserError(f"config.json: model_type = {config['model_type']!r} is not PVT")
    origin_name, origin = formats.choose_origin(hints, HUGGING_FACE_ORIGINS)
    fields = _fields(
        tensors,
        projection="encoder.patch_embeddings.{i}.projection.weight",
        positions="encoder.patch_embeddings.{i}.position_embeddings",
        class_token=r"encoder\.patch_embeddings\.\d+\.cls_token",
        block=_THEIRS,
        names=("layer_norm_1", "mlp.dense1", "attention.self.sequence_reduction"),
        bias="attention.self.query.bias",
        head="classifier.weight",
        heads=counts_of(config, "num_attention_heads"),
        hints=hints,
        size=formats.configured_size(config, "image_size"),
    )
    fields |= {**origin.fields, "activation": hugging_face.activation_of(config)}
    if "layer_norm_eps" in config:
        eps = hugging_face.positive_of(config, "layer_norm_eps")
        fields |= {"norm_eps": eps, "embed_norm_eps": eps}
    expected = {
        "hidden_sizes": fields["widths"],
        "depths": fields["depths"],
        "patch_sizes": fields["patch_sizes"],
        "strides": fields["patch_sizes"],
        "sequence_reduction_ratios": fields["reductions"],
    }
    for name, numbers in expected.items():
        if counts_of(config, name) not in (None, numbers):
            raise UserError(
                f"config.json: {name} = {config[name]}, but the tensors have {list(numbers)}; the "
                "two files are of different models, or the tensors are incomplete"
            )
    preprocessing = dict(origin.preprocessing)
    unit = MODELS["PVT"].architecture(**fields).patch_size
    preprocessing |= processors.read(config.get("preprocessor") or {}, (unit, unit), "pvt")
    names = hugging_face.class_names_of(config) if fields["num_classes"] else None
    return formats.ModelSpec(fields, preprocessing, origin_name, names)


def describe_original(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file of the authors; expects normalized names."""
    origin_name, origin = formats.choose_origin(hints, ORIGINAL_ORIGINS)
    fields = _fields(
        tensors,
        projection="patch_embed.{i}.proj.weight",
        positions="pos_embed.{i}",
        class_token="cls_token",
        block=_BLOCK,
        names=("norm1", "mlp.fc1", "attn.sr"),
        bias="attn.q.bias",
        head="head.weight",
        heads=None,
        hints=hints,
        size=None,
    )
    return formats.ModelSpec({**fields, **origin.fields}, dict(origin.preprocessing), origin_name)


def normalize_hugging_face(tensors: Tensors) -> Tensors:
    """Remove the prefix of the class from names."""
    return {name.removeprefix("pvt."): array for name, array in tensors.items()}


def normalize_original(tensors: Tensors) -> Tensors:
    """Number stages from 0, separated from their names: `block1.0` becomes `block.0.0`."""

    def counted(match: re.Match) -> str:
        return f"{match[1]}.{int(match[2]) - 1}"

    return {
        re.sub(r"^(patch_embed|pos_embed|block)([1-9])(?=\.|$)", counted, name): array
        for name, array in tensors.items()
    }


def finish_hugging_face(
    tensors: dict[str, np.ndarray], fields: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Return the names of transformers' class."""
    prefix = "pvt." if fields["num_classes"] else ""
    return {n if n.startswith("classifier.") else prefix + n: x for n, x in tensors.items()}


def hugging_face_config(
    fields: Mapping[str, Any], preprocessing: Preprocessing, class_names
) -> dict[str, Any]:
    """Return transformers' `config.json`, for `AutoModel.from_pretrained`.

    Raises UserError for fields that transformers does not support.
    """
    needed = {"pool": "cls", "embed_norm_eps": fields["norm_eps"]}
    formats.need("transformers", fields, needed, " of a PVT")
    if not isinstance(fields["image_size"], int) or fields["patch_sizes"] != (4, 2, 2, 2):
        raise UserError(
            "transformers has PVT for square images and patches of (4, 2, 2, 2) only, got "
            f"image_size = {fields['image_size']!r}, patch_sizes = {fields['patch_sizes']!r}; keep "
            "the run folder"
        )
    names = class_names[: fields["num_classes"]]
    written = {
        "architectures": ["PvtForImageClassification" if names else "PvtModel"],
        "model_type": "pvt",
        "image_size": fields["image_size"],
        "num_channels": fields["in_channels"],
        "num_encoder_blocks": len(fields["depths"]),
        "depths": list(fields["depths"]),
        "hidden_sizes": list(fields["widths"]),
        "num_attention_heads": list(fields["heads"]),
        "mlp_ratios": list(fields["mlp_ratios"]),
        "sequence_reduction_ratios": list(fields["reductions"]),
        "patch_sizes": list(fields["patch_sizes"]),
        "strides": list(fields["patch_sizes"]),
        "hidden_act": activation_name(fields["activation"]),
        "layer_norm_eps": fields["norm_eps"],
        "qkv_bias": fields["qkv_bias"],
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "drop_path_rate": 0.0,
        "dtype": "float32",
    }
    if names:
        written["num_labels"] = len(names)  # its own field, which the names do not set
        written |= labels_of(names)
    return written


# ----------------------------------------------------------------------------------------- inside


def _fields(
    tensors: Tensors,
    *,
    projection: str,
    positions: str,
    class_token: str,
    block: str,
    names: tuple[str, str, str],
    bias: str,
    head: str,
    heads: tuple[int, ...] | None,
    hints: formats.Hints,
    size: tuple[int, int] | None,
) -> dict[str, Any]:
    """Return the fields of the model, except those that the origin determines.

    Args:
        projection, positions: names of a stage's tensors. class_token: regular expression.
        block: what the names of a block begin with; in it `names` of the first norm, of the first
            layer of the MLP and of the reduction, and `bias` of the queries.
        heads, size: from the configuration, if it has them.
    """
    norm1, fc1, sr = names

    def first(name: str, i: int) -> str:
        return f"{block}.{name}".format(i=i, j=0)

    stages = formats.count_blocks(tensors, re.escape(projection).replace(r"\{i\}", r"(\d+)"))
    shapes = [
        formats.axes_of(tensors, projection.format(i=i), "out, in, height, width")
        for i in range(stages)
    ]
    if any(height != width for *_, height, width in shapes):
        raise UserError("the patches of a stage are oblong, which is not supported in PVT")
    widths = tuple(shape[0] for shape in shapes)
    patches = tuple(shape[2] for shape in shapes)
    depths, ratios, reductions = [], [], []
    for i in range(stages):
        pattern = re.escape(f"{block}.{norm1}.weight").replace(r"\{i\}", str(i))
        depths.append(formats.count_blocks(tensors, pattern.replace(r"\{j\}", r"(\d+)")))
        hidden = formats.axes_of(tensors, f"{first(fc1, i)}.weight", "out, in")[0]
        ratio = hidden / widths[i]
        ratios.append(int(ratio) if ratio == int(ratio) else ratio)
        reduction = f"{first(sr, i)}.weight"
        reduces = reduction in tensors
        reductions.append(
            formats.axes_of(tensors, reduction, "out, in, height, width")[2] if reduces else 1
        )
    rows = formats.axes_of(tensors, positions.format(i=0), "1, rows, width")[1]
    whole = formats.Hints(image_size=hints.image_size or size)
    _, image_size = formats.position_grid(rows, (0,), (patches[0], patches[0]), whole)
    return {
        "num_classes": formats.outputs_of(tensors, head),
        "image_size": formats.side_or_pair(image_size),
        "in_channels": shapes[0][1],
        "patch_sizes": patches,
        "widths": widths,
        "depths": tuple(depths),
        "heads": heads_of_stages(widths, heads, hints.heads),
        "mlp_ratios": tuple(ratios),
        "reductions": tuple(reductions),
        "pool": "cls" if any(re.fullmatch(class_token, name) for name in tensors) else "mean",
        "qkv_bias": first(bias, 0) in tensors,
    }


def heads_of_stages(
    widths: tuple[int, ...],
    configured: tuple[int, ...] | None,
    hints: int | None,
    published: int = 64,
) -> tuple[int, ...]:
    """Return the heads of every stage: as configured, or all as wide as those of the first.

    published: width of heads without a hint.
    """
    if configured is not None:
        if hints not in (None, configured[0]):
            raise UserError(
                f"--heads={hints} contradicts the config.json beside the file, {list(configured)}; "
                "remove --heads"
            )
        heads = configured
    elif hints is None and any(width % published for width in widths):
        raise UserError(
            f"neither the file nor a config.json beside it has the numbers of heads; the widths of "
            f"its stages are {list(widths)}, and published heads are {published} wide; set the "
            "number of the first stage with --heads=NUMBER"
        )
    elif hints and widths[0] % hints:
        heads = (hints,)
    else:
        each = widths[0] // hints if hints else published
        heads = tuple(max(width // each, 1) for width in widths)
    if len(heads) != len(widths) or any(w % h for w, h in zip(widths, heads, strict=False)):
        raise UserError(
            f"{list(heads)} heads do not divide the widths {list(widths)} of the stages"
        )
    return heads


def counts_of(config: Mapping[str, Any], name: str) -> tuple[int, ...] | None:
    """Return a list of whole numbers above 0 from the configuration; None without it."""
    value = config.get(name)
    if value is None:
        return None
    valid = isinstance(value, list) and value
    if not valid or any(type(n) is not int or n < 1 for n in value):
        raise UserError(
            f"config.json: {name} = {str(value)[:80]!r} should be a list of whole numbers above 0"
        )
    return tuple(value)


FORMATS = (
    formats.CheckpointFormat(
        name="huggingface",
        model_types=("pvt",),
        signature=(
            r"encoder\.patch_embeddings\.0\.position_embeddings",
            r"encoder\.block\.0\.0\.layer_norm_1\.weight",
        ),
        rows=HUGGING_FACE_ROWS,
        describe=describe_hugging_face,
        normalize_names=normalize_hugging_face,
        finish=finish_hugging_face,
        config=hugging_face_config,
        preprocessor=processors.write,
        architecture="PVT",
    ),
    formats.CheckpointFormat(
        name="pvt",
        signature=(r"pos_embed\.0", r"block\.0\.0\.attn\.kv\.weight"),
        rows=ORIGINAL_ROWS,
        describe=describe_original,
        normalize_names=normalize_original,
        architecture="PVT",
    ),
)
