"""The names of the ViTs, from small tables: rows of sizes, times the patch sizes of each."""

from vit_jax.models.registry import get_preset, register
from vit_jax.models.vit.module import ViT

# width, depth, heads, MLP width; and the patch sizes. ViT paper, table 1 (B, L, H); DeiT, table 1
# (Ti, S); Zhai et al. 2022, "Scaling Vision Transformers", table 2 (g, G).
_VIT_SIZES = {
    "Ti": (192, 12, 3, 768, (14, 16, 32)),
    "S": (384, 12, 6, 1536, (8, 14, 16, 32)),
    "B": (768, 12, 12, 3072, (8, 14, 16, 32)),
    "L": (1024, 24, 16, 4096, (14, 16, 32)),
    "H": (1280, 32, 16, 5120, (14, 16, 32)),
    "g": (1408, 40, 16, 6144, (14,)),
    "G": (1664, 48, 16, 8192, (14,)),
    "So400m": (1152, 27, 16, 4304, (14, 16)),  # Alabdulmohsin et al. 2023; SigLIP
}


def _fields(*sizes: int) -> dict[str, int]:
    """Return the fields of width, depth, heads and, if given, MLP width."""
    return dict(zip(("width", "depth", "heads", "mlp_width"), sizes, strict=False))


for _size, (*_row, _patches) in _VIT_SIZES.items():
    for _patch in _patches:
        register(
            f"ViT-{_size}/{_patch}",
            ViT,
            "An Image is Worth 16x16 Words (Dosovitskiy et al. 2021); Ti, S: DeiT (Touvron et al. "
            "2021); g, G: Scaling Vision Transformers (Zhai et al. 2022)",
            patch_size=_patch,
            **_fields(*_row),
        )

# Models under the names of their authors' repositories: the same sizes, with what is their own.
# `pos_resize` is how the repository itself takes its weights to another image size.
_DEIT = {"init_scheme": "trunc02", "pos_resize": "torch-bicubic"}
for _size in ("Ti", "S", "B"):
    for _distilled in (False, True):
        register(
            f"DeiT-{_size}/16" + ("-distilled" if _distilled else ""),
            ViT,
            "Training data-efficient image transformers & distillation through attention (Touvron "
            "et al. 2021), table 1; the distilled ones have a second token and head",
            **get_preset(f"ViT-{_size}/16").fields,
            **_DEIT,
            distilled=_distilled,
        )
for _name in ("S/16", "M/16", "B/16", "L/16", "H/14"):
    # The medium size is of the authors' repository.
    _medium = {**_fields(512, 12, 8, 2048), "patch_size": 16}
    register(
        f"DeiT3-{_name}",
        ViT,
        "DeiT III: Revenge of the ViT (Touvron et al. 2022)",
        **(_medium if _name == "M/16" else get_preset(f"ViT-{_name}").fields),
        **_DEIT,
        layer_scale=1e-4,
        pos_on_cls=False,
    )

# width, depth, heads, MLP width: DINOv2's table of architectures. The giant's MLP is gated, and two
# thirds as wide as one of 4 x width, a multiple of 8.
_DINOV2_SIZES = {
    "S": (384, 12, 6, 1536),
    "B": (768, 12, 12, 3072),
    "L": (1024, 24, 16, 4096),
    "g": (1536, 40, 24, 4096),
}
for _ending, _registers, _resize in (
    ("", 0, "dinov2-bicubic"),
    ("-reg", 4, "torch-bicubic-antialias"),
):
    for _size, _row in _DINOV2_SIZES.items():
        register(
            f"DINOv2-{_size}/14{_ending}",
            ViT,
            "DINOv2: Learning Robust Visual Features without Supervision (Oquab et al. 2023); "
            "-reg: Vision Transformers Need Registers (Darcet et al. 2024); both without a head",
            num_classes=0,
            image_size=518,
            patch_size=14,
            **_fields(*_row),
            mlp="swiglu" if _size == "g" else "plain",
            registers=_registers,
            layer_scale=1e-5,
            init_scheme="trunc02",
            pos_resize=_resize,
        )

# width, depth, heads, MLP width: the repositories' tables.
for _name, _row in {
    "S": (384, 12, 6, 1536),
    "B": (768, 12, 12, 3072),
    "L": (1024, 24, 16, 4096),
    "XL": (1152, 28, 16, 4608),
}.items():
    register(
        f"ViT-5-{_name}",
        ViT,
        "ViT-5 (Wang et al. 2026): RMS norms, also of queries and keys, and rotary positions "
        "beside a table, for registers too",
        **_fields(*_row),
        **{"registers": 4, "pos_on_cls": False, "rotary": "vit5", "norm_type": "rms"},
        **{"qk_norm": True, "qkv_bias": False, "layer_scale": 1e-4},
        **{"init_scheme": "trunc02", "pos_resize": "torch-bicubic"},
    )
for _name, _row in {
    "L": (1024, 24, 8, 2816),
    "H": (1536, 24, 12, 4096),
    "1B": (2048, 24, 16, 5632),
    "3B": (3072, 24, 24, 8192),
}.items():
    register(
        f"AIMv2-{_name}/14",
        ViT,
        "Multimodal Autoregressive Pre-training of Large Vision Encoders (Fini et al. 2024), "
        "without a head",
        **_fields(*_row),
        **{"num_classes": 0, "patch_size": 14, "pool": "mean", "patch_norm": True},
        **{"norm_type": "rms", "norm_eps": 1e-5, "mlp": "swiglu", "qkv_bias": False},
        **{"linear_bias": False, "init_scheme": "trunc02"},
        pos_resize="torch-bicubic-antialias",
    )

# width, depth, heads, MLP width, patch, image size: the README of perception_models.
for _name, (*_row, _patch, _size) in {
    "T/16": (192, 12, 3, 768, 16, 384),
    "S/16": (384, 12, 6, 1536, 16, 384),
    "B/16": (768, 12, 12, 3072, 16, 224),
    "L/14": (1024, 24, 16, 4096, 14, 336),
    "G/14": (1536, 50, 16, 8960, 14, 448),
}.items():
    register(
        f"PE-Core-{_name}",
        ViT,
        "Perception Encoder (Bolya et al. 2025), the image tower before its projection; the giant "
        "has no class token",
        **_fields(*_row),
        **{"num_classes": 0, "image_size": _size, "patch_size": _patch, "norm_eps": 1e-5},
        **{"class_token": _name != "G/14", "patch_bias": False, "embed_norm": True},
        **{"pool": "map", "pool_heads": 8, "pool_prefix": True, "rotary": "pe"},
        pool_mlp_width=None if 4 * _row[0] == _row[3] else 4 * _row[0],
        **{"init_scheme": "trunc02", "pos_resize": "torch-bilinear"},
    )

# width, depth, heads, MLP width: the architectures in DINOv3's `hub/backbones.py`. MLPs of the "+"
# sizes and of 7B are gated; 7B has no biases of queries and values, and timm's files have them only
# under names with `_qkvb`.
_DINOV3_SIZES = {
    "S": (384, 12, 6, 1536),
    "S+": (384, 12, 6, 1536),
    "B": (768, 12, 12, 3072),
    "L": (1024, 24, 16, 4096),
    "L+": (1024, 24, 16, 4096),
    "H+": (1280, 32, 20, 5120),
    "7B": (4096, 40, 32, 8192),
}
for _size, _row in _DINOV3_SIZES.items():
    register(
        f"DINOv3-{_size}/16",
        ViT,
        "DINOv3 (Simeoni et al. 2025), table 1 and section 5: without a head; pool=mean is timm's",
        num_classes=0,
        image_size=256,
        **_fields(*_row),
        mlp="swiglu" if _size.endswith(("+", "7B")) else "plain",
        registers=4,
        positions="none",
        rotary="dinov3",
        qkv_bias=False if _size == "7B" else "qv",
        layer_scale=1e-5,
        norm_eps=1e-5,
        init_scheme="trunc02",
        pos_resize="torch-bicubic-antialias",
    )

# width, depth, heads, MLP width: EVA-02, table 1. All MLPs are gated, two thirds as wide as 4 x
# width; those of B and L have a norm inside. The towers of EVA-CLIP have one in attention as well.
_EVA02_SIZES = {
    "Ti": (192, 12, 3, 512),
    "S": (384, 12, 6, 1024),
    "B": (768, 12, 12, 2048),
    "L": (1024, 24, 16, 2730),
}
for _size, _row in _EVA02_SIZES.items():
    register(
        f"EVA02-{_size}/14",
        ViT,
        "EVA-02: A Visual Representation for Neon Genesis (Fang et al. 2023), table 1",
        patch_size=14,
        **_fields(*_row),
        mlp="swiglu",
        mlp_norm=_size in "BL",
        rotary="eva02",
        qkv_bias="qv",
        pool="mean",
        pool_norm="after",
        class_token=True,
        init_scheme="trunc02",
        pos_resize="torch-bicubic-antialias",
    )

# BEiT v1 and v2 are one architecture; in v2 the layer scale of B begins at 1e-5 too.
for _size, _scale in (("B", 0.1), ("L", 1e-5)):
    register(
        f"BEiT-{_size}/16",
        ViT,
        "BEiT (Bao et al. 2022) and BEiT v2 (Peng et al. 2022), fine-tuned: one architecture",
        **get_preset(f"ViT-{_size}/16").fields,
        positions="relative",
        qkv_bias="qv",
        pool="mean",
        pool_norm="after",
        class_token=True,
        layer_scale=_scale,
        init_scheme="trunc02",
        pos_resize="geometric-bilinear",
    )

# Small models for 32-pixel images, dropout 0.1 on attention weights and twice in the MLP.
_CIFAR_SIZES = {"S": (192, 12, 3), "B": (384, 12, 6), "L": (512, 24, 8)}
for _size, _row in _CIFAR_SIZES.items():
    register(
        f"CIFAR-ViT-{_size}/4",
        ViT,
        "the CIFAR-10 models Small, Base and Large of this project's first notes",
        num_classes=10,
        image_size=32,
        patch_size=4,
        **_fields(*_row),
        attention_dropout=0.1,
        mlp_dropout=0.1,
        init_scheme="normal02",
    )

register(
    "CIFAR-ViT-512/8",
    ViT,
    "the training configuration of the walk-through in this project's first notes: dropout 0.1 on "
    "attention weights, after the attention's projection and in the MLP",
    num_classes=10,
    image_size=32,
    patch_size=8,
    width=512,
    depth=6,
    heads=4,
    attention_dropout=0.1,
    projection_dropout=0.1,
    mlp_dropout=0.1,
)

register(
    "Minimal-ViT-128/8",
    ViT,
    "the minimal example of this project's first notes: torch's TransformerEncoderLayer as it is, "
    "so norms after the sums, ReLU, epsilon 1e-5, dropout 0.1",
    num_classes=10,
    image_size=32,
    patch_size=8,
    width=128,
    depth=4,
    heads=8,
    norm_order="post",
    activation="relu",
    norm_eps=1e-5,
    patch_embed_method="dense",
    attention_dropout=0.1,
    projection_dropout=0.1,
    mlp_dropout=0.1,
)

register(
    "Digits-ViT-64/4",
    ViT,
    "this project's default for the 8 x 8 digits shown at 16 pixels",
    num_classes=10,
    image_size=16,
    patch_size=4,
    in_channels=1,
    width=64,
    depth=4,
    heads=4,
    mlp_ratio=2.0,
    pool="mean",
)

register(
    "ViT",
    ViT,
    "the class itself, with the sizes of ViT-B/16: for weights and sizes that have no name here",
)
