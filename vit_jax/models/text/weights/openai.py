"""Text towers of CLIP and SigLIP under the names of OpenAI and open_clip, PE's among them.

Files of open_clip have them with or without the prefix `text.`; their image tower may be timm's.

Sources: Radford et al. 2021, CLIP; Cherti et al. 2023, open_clip 3.3, by running it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.errors import UserError
from vit_jax.models.text.weights.common import (
    NUMBER,
    Options,
    TowersFormat,
    heads_of,
    numbers,
    tables,
)
from vit_jax.models.vit.weights import image_text
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import open_clip
from vit_jax.weights.mapping import (
    SAME,
    TABLE,
    Row,
    Tensors,
    joint_attention,
    layer_norm,
    linear,
    rows_without,
    write_tensors,
)

_BLOCK = "transformer.resblocks.{i}"
ROWS = (
    Row("text/token_embed", "token_embedding.weight", SAME),
    Row("text/pos_embed", "positional_embedding", TABLE),
    *layer_norm("text/blocks_{i}/norm1", f"{_BLOCK}.ln_1"),
    *joint_attention("text/blocks_{i}/attn", f"{_BLOCK}.attn"),
    *layer_norm("text/blocks_{i}/norm2", f"{_BLOCK}.ln_2"),
    *linear("text/blocks_{i}/mlp/fc1", f"{_BLOCK}.mlp.c_fc"),
    *linear("text/blocks_{i}/mlp/fc2", f"{_BLOCK}.mlp.c_proj"),
    *layer_norm("text/norm", "ln_final"),
    Row("text/projection/kernel", "text_projection", SAME),
    *linear("text/projection", "text_projection"),
    Row("projection/kernel", "visual.proj", SAME),
    # Of a tower of timm: its own head, or a layer behind it.
    *linear("projection", "visual.trunk.head")[:1],
    *linear("projection", "visual.head.proj")[:1],
    Row("logits/scale", "logit_scale", NUMBER),
    Row("logits/bias", "logit_bias", NUMBER),
)
_TRUNK = "visual.trunk."
_HEAD_BIAS = "visual.trunk.head.bias"
_BEHIND_TRUNK = ("visual.trunk.head.weight", _HEAD_BIAS, "visual.head.proj.weight")
_PROJECTIONS = ("visual.proj", *_BEHIND_TRUNK)


def _split(tensors: Tensors) -> tuple[Tensors, Tensors] | None:
    if "text.token_embedding.weight" in tensors:
        tensors = {name.removeprefix("text."): x for name, x in tensors.items()}
    image = {
        name.removeprefix(_TRUNK): x
        for name, x in tensors.items()
        if name.startswith("visual.") and name not in _PROJECTIONS
    }
    if not image or "token_embedding.weight" not in tensors:
        return None
    rest = {n: x for n, x in tensors.items() if not n.startswith("visual.") or n in _PROJECTIONS}
    if _HEAD_BIAS in rest and formats.all_zero(rest[_HEAD_BIAS]):  # as timm writes PE's
        del rest[_HEAD_BIAS]
    return image, numbers(rest)


def _describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints, image: Mapping
) -> Options:
    settings = open_clip.Settings.of(config)
    if _HEAD_BIAS in tensors:
        raise UserError(
            f"{_HEAD_BIAS} adds a bias to the vectors of images, as in EVA-CLIP, which is not "
            "supported"
        )
    if settings is None and hints.origin is None and any(x in tensors for x in _BEHIND_TRUNK):
        raise UserError(
            f"the image tower is timm's, and without {open_clip.FILE} beside the file nothing "
            "tells the GELU of the text tower; put it there"
        )
    is_causal = "text_projection.bias" not in tensors
    layer = r"transformer\.resblocks\."
    options = {
        **tables(tensors, "", "positional_embedding", "token_embedding.weight"),
        "text_depth": formats.count_blocks(tensors, layer + r"(\d+)\.ln_1\.weight"),
        "text_mlp_width": formats.most_common_side(tensors, layer + r"\d+\.mlp\.c_fc\.weight", 0),
        "text_pool": "end" if is_causal else "last",
        # Without a configuration the hint says which, and it is the same in both towers.
        "text_activation": image["activation"],
        "text_norm_eps": 1e-5 if is_causal else 1e-6,
        "text_end_token": None,
    }
    if is_causal:
        options["embed_width"] = formats.axes_of(tensors, "text_projection", "in, out")[1]
    else:
        options["embed_width"] = formats.axes_of(tensors, "text_projection.weight", "out, in")[0]
    configured = None
    if settings is not None:
        configured = formats.configured_number(settings.text, "heads") or 8
        options["text_pool"], options["text_end_token"] = settings.text_pool()
        layers = settings.layers("text")
        # A hint that contradicts the configuration wins in both towers.
        if hints.origin in (None, settings.origin) or settings.trunk:
            options["text_activation"] = layers["activation"]
        options["text_norm_eps"] = layers["norm_eps"]
        if (options["text_pool"] == "end") != is_causal:
            raise UserError(
                f"{open_clip.FILE}: pool_type does not fit the tensors, where text_projection has "
                f"{'no ' if is_causal else 'a '}bias; such a text tower is not supported"
            )
    heads = heads_of(hints, configured, options["text_width"], is_causal)
    return {**options, "text_heads": heads}


def _image_config(config: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return timm's configuration of an image tower of timm, else the same."""
    settings = open_clip.Settings.of(config)
    return config if settings is None or settings.trunk is None else settings.as_timm()


def write(params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the tensors of both towers; params: of the task, unstacked."""
    tower = write_tensors(image_text.OPENAI_ROWS, params["image"])
    return {f"visual.{name}": x for name, x in tower.items()} | write_without_image(params)


def write_without_image(params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the tensors of everything but the image tower, without a prefix."""
    others = {name: tree for name, tree in params.items() if name != "image"}
    has_bias = "bias" in others["text"]["projection"]  # then it is a layer, else a matrix
    rows = rows_without(ROWS, ("text_projection",)) if has_bias else ROWS
    rows += linear("text/projection", "text_projection") if has_bias else ()
    return write_tensors(rows, others)


_IGNORED = {
    r"input_resolution|context_length|vocab_size": "sizes",
    r"(.*\.)?attn_mask": "what a text may attend to",
}
FORMATS = (TowersFormat("openclip", ROWS, _split, _describe, _IGNORED, _image_config),)
