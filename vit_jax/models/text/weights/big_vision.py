"""Text towers of SigLIP in files of big_vision.

Sources: google-research/big_vision, `models/proj/image_text`; Zhai et al. 2023, SigLIP.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.errors import UserError
from vit_jax.models.text.weights.common import LIST, Options, TowersFormat, numbers
from vit_jax.models.vit.weights import google
from vit_jax.weights import formats
from vit_jax.weights.mapping import SAME, Row, Tensors, rows_without, write_tensors

_ENCODER, _OLD = "txt/Encoder_0/", "Transformer/"


def _rows() -> tuple[Row, ...]:
    """Return the rows of the image tower's blocks, under the names of the text tower."""
    shared = []
    for row in google.ROWS:
        if not row.ours.startswith(("blocks_{i}/", "norm/", "map_head/")):
            continue
        names = (row.theirs,) if isinstance(row.theirs, str) else row.theirs
        names = tuple(
            _ENCODER + name.removeprefix(_OLD) if name.startswith(_OLD) else f"txt/{name}"
            for name in names
        )
        theirs = names[0] if isinstance(row.theirs, str) else names
        shared.append(dataclasses.replace(row, ours=f"text/{row.ours}", theirs=theirs))
    return (
        Row("text/token_embed", "txt/Embed_0/embedding", SAME),
        Row("text/pos_embed", "txt/pos_embedding", SAME),
        *shared,
        Row("text/projection/kernel", "txt/head/kernel", SAME),
        Row("text/projection/bias", "txt/head/bias", SAME),
        Row("logits/scale", "t", LIST),
        Row("logits/bias", "b", LIST),
    )


def _split(tensors: Tensors) -> tuple[Tensors, Tensors] | None:
    for prefix in ("", "params/"):
        if f"{prefix}txt/Embed_0/embedding" in tensors:
            texts = (f"{prefix}txt/", f"{prefix}t", f"{prefix}b")
            rest = {
                name.removeprefix(prefix): x
                for name, x in tensors.items()
                if name.startswith(texts[0]) or name in texts[1:]
            }
            image = {
                name: x
                for name, x in tensors.items()
                if name.removeprefix(prefix) not in rest and "img/" in name
            }
            return (image, numbers(_plain(rest))) if image else None
    return None


def _plain(tensors: Tensors) -> Tensors:
    """Unstack blocks, and add the second table of positions that old files have."""
    stacked, plain = f"{_ENCODER}encoderblock/", {}
    few = sum(name.startswith(stacked) for name in tensors) <= google.MOST_STACKED
    for name, array in tensors.items():
        apart = few and np.ndim(array) > 0 and len(array) <= formats.MOST_BLOCKS
        if name.startswith(stacked) and apart:
            rest = name.removeprefix(stacked)
            plain |= {f"{stacked[:-1]}_{i}/{rest}": block for i, block in enumerate(array)}
        else:
            plain[name] = array
    added, table = plain.pop(f"{_ENCODER}pos_embedding", None), "txt/pos_embedding"
    if added is not None and np.shape(plain.get(table)) == added.shape:
        plain[table] = plain[table] + added
    elif added is not None:
        plain.setdefault(table, added)
    return plain


def _describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints, image: Mapping
) -> Options:
    del config
    block = rf"{_ENCODER}encoderblock_"
    query = f"{_ENCODER}encoderblock_0/MultiHeadDotProductAttention_0/query/kernel"
    vocabulary, width = formats.axes_of(tensors, "txt/Embed_0/embedding", "vocabulary, width")
    heads = formats.axes_of(tensors, query, "width, heads, head_dim")[1]
    if hints.text_heads not in (None, heads):
        raise UserError(
            f"--text-heads={hints.text_heads} contradicts the file, which has {heads} heads; "
            "remove --text-heads"
        )
    hidden = formats.most_common_side(tensors, block + r"\d+/MlpBlock_0/Dense_0/kernel", 1)
    return {
        "vocabulary": vocabulary,
        "length": formats.axes_of(tensors, "txt/pos_embedding", "1, rows, width")[1],
        "embed_width": formats.axes_of(tensors, "txt/head/kernel", "in, out")[1],
        "text_width": width,
        "text_depth": formats.count_blocks(tensors, block + r"(\d+)/LayerNorm_0/scale"),
        "text_heads": heads,
        "text_mlp_width": hidden,
        "text_pool": "map" if "txt/MAPHead_0/probe" in tensors else "last",
        "text_activation": image["activation"],
        "text_norm_eps": image["norm_eps"],
        "text_end_token": None,
    }


# ------------------------------------------------------------------------------------------ writing

_STACKS = ("img/Transformer/encoderblock", "txt/Encoder_0/encoderblock")
_OLD_POSITIONS = ("posembed_input/", "Transformer/pos_embedding")
_IMAGE_ROWS = rows_without(google.ROWS, _OLD_POSITIONS)


def _layout(tensors: Tensors) -> dict[str, Any]:
    """Return the prefix of all names, and which towers have their blocks stacked."""
    prefix = "params/" if "params/txt/Embed_0/embedding" in tensors else ""
    starts = (f"{prefix}{name}/" for name in _STACKS)
    stacked = [any(name.startswith(start) for name in tensors) for start in starts]
    return {"prefix": prefix, "stacked": stacked}


def write(params: Mapping[str, Any], layout: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the tensors of both towers under the names of big_vision.

    Args:
        params: of the task, unstacked.
        layout: of the file, with a prefix and blocks as it had them; an empty one for the published
            ones of 2023.
    """
    others = {name: tree for name, tree in params.items() if name != "image"}
    image = write_tensors(_IMAGE_ROWS, params["image"])
    tensors = {f"img/{name}": x for name, x in image.items()} | write_tensors(ROWS, others)
    for name, stacked in zip(_STACKS, layout.get("stacked", ()), strict=False):
        if stacked:
            tensors = _stack(tensors, f"{name}_")
    prefix = layout.get("prefix", "params/")
    return {f"{prefix}{name}": x for name, x in tensors.items()}


def _stack(tensors: Tensors, start: str) -> dict[str, np.ndarray]:
    """Return the tensors with those of all blocks of a tower under one name, in front the depth."""
    blocks, stacked = {}, {}
    for name, array in tensors.items():
        if name.startswith(start):
            number, rest = name.removeprefix(start).split("/", 1)
            blocks.setdefault(f"{start[:-1]}/{rest}", {})[int(number)] = array
        else:
            stacked[name] = array
    return stacked | {n: np.stack([x[i] for i in range(len(x))]) for n, x in blocks.items()}


ROWS = _rows()
FORMATS = (TowersFormat("big_vision", ROWS, _split, _describe, layout=_layout),)
