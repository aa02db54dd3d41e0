"""Names of torchvision's `swin_t`, `swin_s` and `swin_b`.

`features.1`, `.3`, ... are the stages, `features.2`, `.4`, ... what merges patches between them.
What is written is a whole state: torchvision has no configuration and stores the index of relative
positions with every block.

Source of the names and facts: torchvision 0.28, `swin_transformer`, by running it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.data import Preprocessing
from vit_jax.data.images.preprocess import crop_of
from vit_jax.errors import UserError
from vit_jax.models.attention.windows import relative_index
from vit_jax.models.registry import MODELS
from vit_jax.models.swin.weights.fields import FIELDS, IGNORED, OURS, read_fields
from vit_jax.models.validation import pair
from vit_jax.weights import formats
from vit_jax.weights.mapping import (
    CONV,
    OUT_KERNEL,
    QKV_BIAS,
    QKV_KERNEL,
    SAME,
    Row,
    Tensors,
    layer_norm,
    linear,
)

# After `normalize`, which numbers stages and merging as here.
_BLOCK = "stages.{i}.{j}"

ROWS = (
    *linear("patch_embed", "features.0.0", CONV),
    *layer_norm("pre_norm", "features.0.2"),
    *layer_norm("stages_{i}/downsample/norm", "merging.{i}.norm"),
    linear("stages_{i}/downsample/reduction", "merging.{i}.reduction")[0],
    *layer_norm(f"{OURS}/norm1", f"{_BLOCK}.norm1"),
    Row(f"{OURS}/attn/qkv/kernel", f"{_BLOCK}.attn.qkv.weight", QKV_KERNEL),
    Row(f"{OURS}/attn/qkv/bias", f"{_BLOCK}.attn.qkv.bias", QKV_BIAS),
    Row(f"{OURS}/attn/relative_bias", f"{_BLOCK}.attn.relative_position_bias_table", SAME),
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
# torchvision's resize_size of each model, by its deepest stage and width; 224 are cut out.
_RESIZED = {(6, 96): 232, (18, 96): 246, (18, 128): 238}


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file with torchvision's names; expects normalized ones."""
    origin_name, origin = formats.choose_origin(hints, ORIGINS)
    fields = read_fields(
        tensors,
        projection="features.0.0.weight",
        rows=ROWS,
        block=_BLOCK,
        names=("norm1.weight", "mlp.0.weight", "attn.qkv.bias"),
        head="head.weight" if "head.weight" in tensors else None,
        window=None,
        image_size=hints.image_size,
    )
    resized = _RESIZED.get((max(fields["depths"]), fields["width"]), 256)
    crop = crop_of((224, 224), (resized, resized))
    preprocessing = {**origin.preprocessing, "crop": crop}
    return formats.ModelSpec({**fields, **origin.fields}, preprocessing, origin_name)


def normalize(tensors: Tensors) -> Tensors:
    """Number stages consecutively, and count merging to the stage that it precedes."""
    if "features.1.0.attn.relative_position_bias_table" not in tensors:
        return tensors

    def renamed(name: str) -> str:
        first, _, rest = name.partition(".")
        number, _, rest = rest.partition(".")
        if first != "features" or not number.isdecimal() or len(number) > 3 or number == "0":
            return name
        return f"{'stages' if int(number) % 2 else 'merging'}.{int(number) // 2}.{rest}"

    return {renamed(name): array for name, array in tensors.items()}


def finish(tensors: dict[str, np.ndarray], fields: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the names of torchvision's class, with the index of every block."""
    window = pair(fields["window"])
    index = np.asarray(relative_index(window, window), np.int64).reshape(-1)
    finished = {}
    for name, array in tensors.items():
        first, _, rest = name.partition(".")
        if first in ("stages", "merging"):
            number, _, rest = rest.partition(".")
            name = f"features.{2 * int(number) + (first == 'stages')}.{rest}"
        finished[name] = array
        if name.endswith(".relative_position_bias_table"):
            finished[name.replace("_bias_table", "_index")] = index
    return finished


def config(fields: Mapping[str, Any], preprocessing: Preprocessing, class_names) -> dict[str, Any]:
    """Return nothing: torchvision has no configuration.

    Raises UserError for fields that torchvision does not support.
    """
    needed = {"norm_eps": 1e-5, "activation": "gelu", "qkv_bias": True, "in_channels": 3}
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


FORMAT = formats.CheckpointFormat(
    name="torchvision",
    signature=(
        r"features\.0\.0\.weight",
        r"stages\.0\.0\.attn\.relative_position_bias_table",
    ),
    rows=ROWS,
    describe=describe,
    ignored=IGNORED,
    normalize_names=normalize,
    finish=finish,
    config=config,
    architecture="Swin",
)
