"""Text towers of CLIP, SigLIP and SigLIP 2 under the names of transformers.

Source: transformers 5.24 (`models/{clip,siglip,siglip2}`), by running them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vit_jax.errors import UserError
from vit_jax.models.text.weights.common import (
    LIST,
    NUMBER,
    Options,
    TowersFormat,
    heads_of,
    numbers,
    tables,
)
from vit_jax.models.vit.weights import hugging_face
from vit_jax.models.vit.weights.image_text import section_of
from vit_jax.weights import formats
from vit_jax.weights.mapping import (
    SAME,
    TABLE,
    Layout,
    Row,
    Tensors,
    layer_norm,
    linear,
    split_attention,
)


def _rows(projection: Sequence[Row], number: Layout) -> tuple[Row, ...]:
    ours, layer = "text/blocks_{i}", "text_model.encoder.layers.{i}"
    embeddings = "text_model.embeddings"
    return (
        Row("text/token_embed", f"{embeddings}.token_embedding.weight", SAME),
        Row("text/pos_embed", f"{embeddings}.position_embedding.weight", TABLE),
        *layer_norm(f"{ours}/norm1", f"{layer}.layer_norm1"),
        *split_attention(f"{ours}/attn", f"{layer}.self_attn"),
        *layer_norm(f"{ours}/norm2", f"{layer}.layer_norm2"),
        *linear(f"{ours}/mlp/fc1", f"{layer}.mlp.fc1"),
        *linear(f"{ours}/mlp/fc2", f"{layer}.mlp.fc2"),
        *layer_norm("text/norm", "text_model.final_layer_norm"),
        *projection,
        Row("logits/scale", "logit_scale", number),
        Row("logits/bias", "logit_bias", number),
    )


CLIP_ROWS = _rows(
    (
        *linear("text/projection", "text_projection")[:1],
        *linear("projection", "visual_projection")[:1],
    ),
    NUMBER,
)
SIGLIP_ROWS = _rows(linear("text/projection", "text_model.head"), LIST)


def _split(is_clip: bool) -> Callable[[Tensors], tuple[Tensors, Tensors] | None]:
    projection = "text_projection.weight" if is_clip else "text_model.head.weight"

    def split(tensors: Tensors) -> tuple[Tensors, Tensors] | None:
        image = {name: x for name, x in tensors.items() if name.startswith("vision_model.")}
        needed = ("text_model.embeddings.token_embedding.weight", projection)
        if not image or any(name not in tensors for name in needed):
            return None
        return image, numbers({n: x for n, x in tensors.items() if n not in image})

    return split


def _describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints, image: Mapping
) -> Options:
    is_clip = "text_projection.weight" in tensors
    section = section_of(config or {}, "text_config")
    layer = r"text_model\.encoder\.layers\."
    embed, width = formats.axes_of(
        tensors, "text_projection.weight" if is_clip else "text_model.head.weight", "out, in"
    )
    configured = formats.configured_number(section, "num_attention_heads")
    options = {
        **tables(tensors, "text_model.embeddings.", "position_embedding.weight"),
        "embed_width": embed,
        "text_depth": formats.count_blocks(tensors, layer + r"(\d+)\.layer_norm1\.weight"),
        "text_heads": heads_of(hints, configured, width, is_clip),
        "text_mlp_width": formats.most_common_side(tensors, layer + r"\d+\.mlp\.fc1\.weight", 0),
        "text_pool": "end" if is_clip else "last",
        "text_activation": image["activation"],
        "text_norm_eps": image["norm_eps"],
        "text_end_token": None,
    }
    if "hidden_act" in section:
        options["text_activation"] = hugging_face.activation_of(section)
    if "layer_norm_eps" in section:
        options["text_norm_eps"] = hugging_face.positive_of(section, "layer_norm_eps")
    if is_clip and section:
        end = section.get("eos_token_id")
        if end is not None and type(end) is not int:
            raise UserError(f"config.json: eos_token_id = {str(end)[:80]} should be a whole number")
        # Before 2023 the number was wrong, 2; such a file takes the largest id.
        options["text_end_token"] = None if end == 2 else end
    return options


_POSITIONS = {r"text_model\.embeddings\.position_ids": "numbers of positions"}
FORMATS = (
    TowersFormat("clip", CLIP_ROWS, _split(True), _describe, _POSITIONS),
    TowersFormat("siglip", SIGLIP_ROWS, _split(False), _describe, _POSITIONS),
)
