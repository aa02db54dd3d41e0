"""Weights of ViT-5 under the names of its authors, `torch.save({"model": ...})`.

The names are nearly timm's. Class token, patches, then registers is the order of tokens there; here
registers stand before the patches, which changes no number, since attention has no order. The class
token and the registers have no learned position.

Source: Wang et al. 2026, "ViT-5", and their repository's `models_vit5.py` and `rope.py`.
"""

from collections.abc import Mapping
from typing import Any

from vit_jax.models.vit.weights import timm
from vit_jax.weights import formats
from vit_jax.weights.mapping import Tensors, rows_without

_OTHER_NAMES = ("ls1.gamma", "ls2.gamma", "register_tokens", "mlp.w12", "mlp.w3", "fc_norm")
ROWS = rows_without(timm.ROWS, _OTHER_NAMES)

ORIGIN = formats.Origin(
    {
        **{"pos_on_cls": False, "rotary": "vit5", "norm_type": "rms", "norm_eps": 1e-6},
        **{"qk_norm": True, "qkv_bias": False, "layer_scale": 1e-4, "pool": "cls"},
        **{"init_scheme": "trunc02", "pos_resize": "torch-bicubic"},
    },
    {**formats.IMAGENET, "crop": 1.0, "interpolation": "bicubic"},
    "Wang et al. 2026, ViT-5: models_vit5.py, datasets.py and the commands of the README",
)


def describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file with the names of ViT-5."""
    _, origin = formats.choose_origin(hints, {"vit5": ORIGIN}, "vit5")
    width, in_channels, *patch = formats.axes_of(
        tensors, "patch_embed.proj.weight", "out, in, height, width"
    )
    rows = formats.axes_of(tensors, "pos_embed", "1, rows, width")[1]
    _, image_size = formats.position_grid(rows, (0,), tuple(patch), hints)
    [head_dim] = formats.axes_of(tensors, "blocks.0.attn.q_norm.weight", "head_dim")
    fields = {
        "num_classes": formats.outputs_of(tensors, "head.weight"),
        "image_size": formats.side_or_pair(image_size),
        "patch_size": formats.side_or_pair(tuple(patch)),
        "in_channels": in_channels,
        "width": width,
        "depth": formats.count_blocks(tensors, r"blocks\.(\d+)\.norm1\.weight"),
        "heads": formats.need_heads(hints, max(width // head_dim, 1), width),
        "mlp_width": formats.most_common_side(tensors, r"blocks\.\d+\.mlp\.fc1\.weight", 0),
        "registers": formats.axes_of(tensors, "reg_token", "1, registers, width")[1],
        **origin.fields,
    }
    return formats.ModelSpec(fields, dict(origin.preprocessing), "vit5")


FORMAT = formats.CheckpointFormat(
    name="vit5",
    signature=(r"reg_token", r"blocks\.0\.attn\.q_norm\.weight", r"blocks\.0\.gamma_1"),
    rows=ROWS,
    describe=describe,
    ignored={r"blocks\.\d+\.attn\.rope(_reg)?\.freqs": "frequencies, which are computed here"},
)
