"""Weights of BEiT and BEiT v2: timm's files and the authors', which have the same names.

Every block has a table of relative positions; its last three rows, of pairs with the class token,
are the first ones here. The versions differ in training and preprocessing only. The authors' files
also have the index of every pair of tokens, which is computed here.

For another image size timm interpolates a table linearly, between places whose distances grow
geometrically from the offset 0. The authors do it by SciPy's cubic spline, which is not supported.

The authors' files of pre-training have one table for all blocks, and are not supported; use those
that were fine-tuned.

Sources: timm 1.0.31, `beit.py`, by running it; microsoft/unilm, `beit/modeling_finetune.py` and
`beit/datasets.py` (Bao et al. 2022; Peng et al. 2022, "BEiT v2").
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.errors import UserError
from vit_jax.models.positions.relative import IN_FRONT, offset_rows
from vit_jax.models.vit.weights import eva
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import timm_arguments, timm_eva
from vit_jax.weights.mapping import Layout, Row, Tensors

# The three rows of pairs with the class token, theirs last and ours first.
RELATIVE = Layout(
    lambda arrays, shape: np.roll(arrays[0], IN_FRONT, axis=0),
    lambda x: [x.take(np.roll(np.arange(x.shape[0]), -IN_FRONT), axis=0)],
)
_TABLE = "blocks.{i}.attn.relative_position_bias_table"
ROWS = (*eva.ROWS, Row("blocks_{i}/attn/relative_bias", _TABLE, RELATIVE))
IGNORED = {
    r"blocks\.\d+\.attn\.relative_position_index": "the index of pairs of tokens, computed here"
}

_FIELDS = {"positions": "relative", "pos_resize": "geometric-bilinear", "norm_eps": 1e-6}
_RESIZE = {"crop": 0.875, "interpolation": "bicubic"}
_SOURCE = "microsoft/unilm: `beit/datasets.py` and the README's commands"
ORIGINS = {
    "beit": formats.Origin(_FIELDS, {**formats.HALF, **_RESIZE}, _SOURCE),
    "beitv2": formats.Origin(_FIELDS, {**formats.IMAGENET, **_RESIZE}, _SOURCE),
}
_NEEDED = {
    "use_abs_pos_emb": (False,),
    "use_rel_pos_bias": (True,),
    "use_shared_rel_pos_bias": (False,),
}


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a BEiT."""
    config = config or {}
    fields, patch = eva.block_fields(tensors), eva.patch_of(tensors)
    timm_eva.check_arguments(config, fields, _NEEDED)
    architecture = timm_arguments.architecture_of(config)
    found = architecture.split("_")[0] if architecture.startswith(("beit_", "beitv2_")) else None
    origin_name, origin = formats.choose_origin(hints, ORIGINS, found)
    rows, heads = formats.axes_of(tensors, _TABLE.format(i=0), "rows, heads")
    image_size = image_size_of(rows, patch, timm_arguments.with_size(hints, config))
    fields |= {
        **origin.fields,
        "image_size": formats.side_or_pair(image_size),
        "heads": formats.need_heads(hints, heads, fields["width"]),
        "pool": timm_eva.pooling(config, "mean" if fields["pool_norm"] == "after" else "cls"),
    }
    preprocessing = timm_eva.preprocessing_of(config, origin, patch)
    if not config and max(image_size) >= 384:
        preprocessing["crop"] = 1.0
    return formats.ModelSpec(
        fields,
        preprocessing,
        origin_name,
        timm_arguments.label_names(config, fields["num_classes"]),
    )


def image_size_of(rows: int, patch: tuple[int, int], hints: formats.Hints) -> tuple[int, int]:
    """Return (height, width) in pixels of the grid whose table has these rows.

    Raises UserError if there is no such square, or the size of the hints has another table.
    """
    side = math.isqrt(max(rows - IN_FRONT, 0)) // 2 + 1
    grid = (side, side)
    if hints.image_size is not None:
        grid = tuple(pixels // p for pixels, p in zip(hints.image_size, patch, strict=True))
    if min(grid) < 1 or offset_rows(grid, IN_FRONT) != rows:
        raise UserError(
            f"the tables of relative positions have {rows} rows, and a grid of {grid[0]} x "
            f"{grid[1]} patches has {offset_rows(grid, IN_FRONT)}; set the image size of the "
            "tables with --file-size=HEIGHTxWIDTH"
        )
    return grid[0] * patch[0], grid[1] * patch[1]


def writes(fields: Mapping[str, Any]) -> bool:
    """Return whether a ViT has relative positions."""
    return fields["positions"] == "relative"


def config(fields: Mapping[str, Any], preprocessing: Any, class_names: Any) -> dict[str, Any]:
    """Return timm's `config.json`; UserError for fields that no BEiT of timm has."""
    return timm_eva.written(
        fields,
        preprocessing,
        class_names,
        architecture="beit_base_patch16_224",
        arguments={},
        needed={"rotary": "none", "mlp": "plain", "norm_eps": 1e-6, "activation": "gelu"},
    )


FORMAT = formats.CheckpointFormat(
    name="timm",
    signature=(
        r"patch_embed\.proj\.weight",
        r"blocks\.0\.attn\.qkv\.weight",
        r"blocks\.0\.attn\.relative_position_bias_table",
    ),
    absent=(r"pos_embed", r"reg_token"),
    rows=ROWS,
    describe=describe,
    ignored=IGNORED,
    finish=timm_eva.finish,
    config=config,
    writes=writes,
    others=r"(?!beit(v2)?_).+",
)
