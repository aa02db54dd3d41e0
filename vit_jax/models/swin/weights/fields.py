"""Fields of a Swin by the shapes in its files, which all formats share."""

import math
import re
from typing import Any

from vit_jax.errors import UserError
from vit_jax.weights.formats import (
    axes_of,
    count_blocks,
    side_or_pair,
)
from vit_jax.weights.mapping import (
    Row,
    Tensors,
)

OURS = "stages_{i}/blocks_{j}"

# Ignored names: regular expression and description.
IGNORED = {
    r".*\.(relative_position_index|attn_mask)": "computed from the window, not learned",
    r"embeddings\.mask_token|mask_token": "the token in place of hidden patches, for pre-training",
    r"decoder\..*": "the decoder of pre-training by hidden patches",
}

FIELDS = {"norm_eps": 1e-5, "activation": "gelu", "pos_resize": "torch-bicubic"}


def moved(name: str, by: int) -> str:
    """Return the name of a patch merging in another stage; other names are kept."""
    return re.sub(
        r"(?<=layers\.)(\d+)(?=\.downsample\.)", lambda match: str(int(match[1]) + by), name
    )


def read_fields(
    tensors: Tensors,
    *,
    projection: str,
    rows: tuple[Row, ...],
    block: str,
    names: tuple[str, str, str],
    head: str | None,
    window: tuple[int, int] | None,
    image_size: tuple[int, int] | None,
) -> dict[str, Any]:
    """Return the fields of the model, except those that the origin determines.

    rows: of the format. block: the name of a block in it.
    names: within a block, of the first norm, of the MLP's first layer and of the bias of queries.
    window, image_size: from the configuration or the hints, if known.
    """
    norm1, fc1, qkv_bias = names
    table = next(row.theirs for row in rows if row.ours.endswith("relative_bias"))
    width, in_channels, *patch = axes_of(tensors, projection, "out, in, height, width")
    stages = count_blocks(
        tensors, re.escape(f"{block}.{norm1}").replace(r"\{i\}", r"(\d+)").replace(r"\{j\}", "0")
    )
    depths, heads, sides = [], [], []
    for i in range(stages):
        pattern = re.escape(f"{block}.{norm1}").replace(r"\{i\}", str(i))
        depths.append(count_blocks(tensors, pattern.replace(r"\{j\}", r"(\d+)")))
        offsets, of_stage = axes_of(tensors, table.format(i=i, j=0), "offsets, heads")
        heads.append(of_stage)
        sides.append((math.isqrt(offsets) + 1) // 2)
        if window is None and (2 * sides[-1] - 1) ** 2 != offsets:
            raise UserError(
                f"{table.format(i=i, j=0)} has {offsets} rows, which no square window has; a "
                "config.json with the window is needed beside the file"
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
