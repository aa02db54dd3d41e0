"""Names of torchvision's `swin_t`, `swin_s` and `swin_b`, and of `swin_v2_t` and so on.

`features.1`, `.3`, ... are the stages, `features.2`, `.4`, ... what merges patches between them.
What is written is a whole state: torchvision has no configuration and stores the index of relative
positions with every block, in version 2 the coordinates of offsets too. There it has a bias for
keys, which it takes as zeros.

Source of the names and facts: torchvision 0.28, `swin_transformer`, by running it.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from vit_jax.data import Preprocessing
from vit_jax.data.images.preprocess import crop_of
from vit_jax.errors import UserError
from vit_jax.models.attention.windows import relative_index
from vit_jax.models.positions.continuous import log_coordinates
from vit_jax.models.registry import MODELS
from vit_jax.models.swin.weights.fields import (
    FIELDS,
    IGNORED,
    OURS,
    bias_row,
    is_version,
    need_version,
    position_rows,
    read_fields,
)
from vit_jax.models.validation import pair
from vit_jax.weights import formats
from vit_jax.weights.mapping import (
    CONV,
    OUT_KERNEL,
    QKV_KERNEL,
    Row,
    Tensors,
    layer_norm,
    linear,
)

# After `normalize`, which numbers stages and merging as here.
_BLOCK = "stages.{i}.{j}"


def _rows(version: int) -> tuple[Row, ...]:
    """Return the table of a version."""
    return (
        *linear("patch_embed", "features.0.0", CONV),
        *layer_norm("pre_norm", "features.0.2"),
        *layer_norm("stages_{i}/downsample/norm", "merging.{i}.norm"),
        linear("stages_{i}/downsample/reduction", "merging.{i}.reduction")[0],
        *layer_norm(f"{OURS}/norm1", f"{_BLOCK}.norm1"),
        Row(f"{OURS}/attn/qkv/kernel", f"{_BLOCK}.attn.qkv.weight", QKV_KERNEL),
        bias_row(f"{_BLOCK}.attn", version),
        *position_rows(f"{_BLOCK}.attn", version),
        *linear(f"{OURS}/attn/out", f"{_BLOCK}.attn.proj", OUT_KERNEL),
        *layer_norm(f"{OURS}/norm2", f"{_BLOCK}.norm2"),
        *linear(f"{OURS}/mlp/fc1", f"{_BLOCK}.mlp.0"),
        *linear(f"{OURS}/mlp/fc2", f"{_BLOCK}.mlp.3"),
        *layer_norm("norm", "norm"),
        *linear("head", "head"),
    )


ORIGINS = {
    "torchvision": formats.Origin(
        FIELDS,
        {**formats.IMAGENET, "interpolation": "bicubic"},
        "torchvision's IMAGENET1K_V1 weights and their transforms",
    ),
}
# torchvision's resize_size of each model, by its deepest stage and width; and what is cut out.
_RESIZED = {
    1: {(6, 96): 232, (18, 96): 246, (18, 128): 238},
    2: {(6, 96): 260, (18, 96): 260, (18, 128): 272},
}
_CUT = {1: 224, 2: 256}


def describe(
    tensors: Tensors,
    config: Mapping[str, Any] | None,
    hints: formats.Hints,
    version: int,
) -> formats.ModelSpec:
    """Return the spec of a file with torchvision's names; expects normalized ones."""
    origin_name, origin = formats.choose_origin(hints, ORIGINS)
    fields = read_fields(
        tensors,
        projection="features.0.0.weight",
        rows=_rows(version),
        block=_BLOCK,
        names=("norm1.weight", "mlp.0.weight", f"attn.{('qkv.bias', 'q_bias')[version - 1]}"),
        head="head.weight" if "head.weight" in tensors else None,
        window=None,
        image_size=hints.image_size,
        version=version,
    )
    cut = _CUT[version]
    resized = _RESIZED[version].get((max(fields["depths"]), fields["width"]), round(cut / 0.875))
    crop = crop_of((cut, cut), (resized, resized))
    preprocessing = {**origin.preprocessing, "crop": crop}
    return formats.ModelSpec({**fields, **origin.fields}, preprocessing, origin_name)


def normalize(tensors: Tensors) -> Tensors:
    """Number stages consecutively, and count merging to the stage that it precedes."""
    marks = ("relative_position_bias_table", "cpb_mlp.0.weight")
    if not any(f"features.1.0.attn.{mark}" in tensors for mark in marks):
        return tensors

    def renamed(name: str) -> str:
        first, _, rest = name.partition(".")
        number, _, rest = rest.partition(".")
        if first != "features" or not number.isdecimal() or len(number) > 3 or number == "0":
            return name
        return f"{'stages' if int(number) % 2 else 'merging'}.{int(number) // 2}.{rest}"

    renamed_tensors = {renamed(name): array for name, array in tensors.items()}
    return _without_bias_of_keys(renamed_tensors)


def _without_bias_of_keys(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return biases of q and v as two tensors in version 2."""
    found = {}
    for name, array in tensors.items():
        attn, is_bias, _ = name.partition(".qkv.bias")
        if is_bias and f"{attn}.logit_scale" in tensors and array.ndim == 1:
            third = len(array) // 3
            found |= {f"{attn}.q_bias": array[:third], f"{attn}.v_bias": array[-third:]}
        else:
            found[name] = array
    return found


def finish(tensors: dict[str, np.ndarray], fields: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the names of torchvision's class, with what it computes for every block."""
    window = pair(fields["window"])
    index = np.asarray(relative_index(window, window), np.int64).reshape(-1)
    height, width = window
    coordinates = log_coordinates(window).reshape(1, 2 * height - 1, 2 * width - 1, 2)
    finished = {}
    for name, array in tensors.items():
        if name.endswith(".v_bias"):
            continue
        if name.endswith(".q_bias"):
            values = tensors[name.replace(".q_bias", ".v_bias")]
            name = name.replace(".q_bias", ".qkv.bias")
            array = np.concatenate([array, np.zeros_like(array), values])
        first, _, rest = name.partition(".")
        if first in ("stages", "merging"):
            number, _, rest = rest.partition(".")
            name = f"features.{2 * int(number) + (first == 'stages')}.{rest}"
        finished[name] = array
        if name.endswith(".relative_position_bias_table"):
            finished[name.replace("_bias_table", "_index")] = index
        if name.endswith(".logit_scale"):
            finished[name.replace("logit_scale", "relative_position_index")] = index
            finished[name.replace("logit_scale", "relative_coords_table")] = coordinates
    return finished


def config(fields: Mapping[str, Any], preprocessing: Preprocessing, class_names) -> dict[str, Any]:
    """Return nothing: torchvision has no configuration.

    Raises UserError for fields that torchvision does not support.
    """
    version = 2 if is_version(fields, 2) else 1
    need_version("torchvision", fields, version)
    needed = {"norm_eps": 1e-5, "activation": "gelu", "in_channels": 3, "pretrained_windows": None}
    needed["qkv_bias"] = (True, "qv")[version - 1]
    formats.need("torchvision", fields, needed, " of a Swin")
    if not fields["num_classes"]:
        raise UserError("torchvision has no Swin without a head; use run, timm or huggingface")
    window = pair(fields["window"])
    model = MODELS["Swin"].architecture(**fields)
    if any(built != window for built in model.built_windows):
        raise UserError(
            f"with images of {fields['image_size']} pixels a stage has a map smaller than its "
            f"window of {fields['window']!r}; torchvision's Swin computes something else there"
        )
    return {}


def _format(version: int) -> formats.CheckpointFormat:
    mark = ("relative_position_bias_table", r"cpb_mlp\.0\.weight")[version - 1]
    return formats.CheckpointFormat(
        name="torchvision",
        signature=(r"features\.0\.0\.weight", rf"stages\.0\.0\.attn\.{mark}"),
        rows=_rows(version),
        describe=partial(describe, version=version),
        ignored=IGNORED,
        normalize_names=normalize,
        finish=finish,
        config=config,
        writes=partial(is_version, version=version),
        architecture="Swin",
    )


FORMATS = (_format(2), _format(1))
