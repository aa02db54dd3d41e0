"""Models by the names of their papers: `create_model("ViT-B/16", num_classes=10)`.

A name stands for an architecture class and the fields in which it differs from that class.
The names are made from small tables: a row of sizes times the patch sizes it was published with.
"""

import dataclasses
import difflib
import fnmatch
import re
from collections.abc import Iterable
from typing import Any

from flax import linen as nn

from vit_jax.models.vit import ViT


@dataclasses.dataclass(frozen=True)
class Preset:
    """What a model name stands for.

    Attributes:
        architecture: the module class.
        fields: the fields that differ from the class's defaults.
        source: where the numbers come from.
    """

    architecture: type[nn.Module]
    fields: dict[str, Any]
    source: str


MODELS: dict[str, Preset] = {}


def create_model(name: str, **fields: Any) -> nn.Module:
    """Builds a model by its name; keyword arguments override the module's fields.

    >>> create_model("ViT-B/16", num_classes=10, image_size=384)

    Raises:
        ValueError: there is no such name, or no such field; the sentence names the nearest ones.
    """
    preset = get_preset(name)
    known = model_fields(name)
    for field in fields:
        if field not in known:
            raise ValueError(
                f"{name} has no field {field!r}{_nearest(field, known)}; "
                f"its fields are {', '.join(known)}."
            )
    return preset.architecture(**{**preset.fields, **fields})


def list_models(pattern: str = "*") -> list[str]:
    """The names that match a shell pattern such as `"ViT-B/*"`, families first, then by size."""
    return [name for name in MODELS if fnmatch.fnmatchcase(name.lower(), pattern.lower())]


def model_fields(name: str) -> dict[str, Any]:
    """The fields of a model and the values they have if `create_model` is given none."""
    preset = get_preset(name)
    fields = {
        field.name: field.default
        for field in dataclasses.fields(preset.architecture)
        if field.name not in ("parent", "name")  # linen's own
    }
    return {**fields, **preset.fields}


def get_preset(name: str) -> Preset:
    """The record of a name. Raises ValueError with the nearest names if there is none."""
    if name not in MODELS:
        raise ValueError(
            f"there is no model {name!r}{_nearest(name, MODELS)}; list_models() gives all names."
        )
    return MODELS[name]


def register(name: str, architecture: type[nn.Module], source: str, **fields: Any) -> None:
    """Adds a name. Raises ValueError if it is taken."""
    if name in MODELS:
        raise ValueError(f"the model name {name!r} is taken already.")
    MODELS[name] = Preset(architecture, fields, source)


def _nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'ViT-B/16'?`, or nothing where nothing is near."""

    def bare(name: str) -> str:  # vit_b_16, ViT-B-16 and ViT-B/16 are one to the person who types
        return re.sub(r"[^a-z0-9]", "", name.lower())

    by_bare = {bare(name): name for name in known}
    close = difflib.get_close_matches(bare(word), by_bare, n=3, cutoff=0.5)
    if not close:
        return ""
    return "; did you mean " + " or ".join(repr(by_bare[match]) for match in close) + "?"


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
}
for _size, (_width, _depth, _heads, _mlp_width, _patches) in _VIT_SIZES.items():
    for _patch in _patches:
        register(
            f"ViT-{_size}/{_patch}",
            ViT,
            "An Image is Worth 16x16 Words (Dosovitskiy et al. 2021); Ti, S: DeiT (Touvron et al. "
            "2021); g, G: Scaling Vision Transformers (Zhai et al. 2022)",
            patch_size=_patch,
            width=_width,
            depth=_depth,
            heads=_heads,
            mlp_width=_mlp_width,
        )

# Models under the names of their authors' repositories: the same sizes, with what is their own.
# `pos_resize` is how the repository itself takes its weights to another picture size.
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
for _name in ("S/16", "B/16", "L/16", "H/14"):
    register(
        f"DeiT3-{_name}",
        ViT,
        "DeiT III: Revenge of the ViT (Touvron et al. 2022)",
        **get_preset(f"ViT-{_name}").fields,
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
    for _size, (_width, _depth, _heads, _mlp_width) in _DINOV2_SIZES.items():
        register(
            f"DINOv2-{_size}/14{_ending}",
            ViT,
            "DINOv2: Learning Robust Visual Features without Supervision (Oquab et al. 2023); "
            "-reg: Vision Transformers Need Registers (Darcet et al. 2024); both without a head",
            num_classes=0,
            image_size=518,
            patch_size=14,
            width=_width,
            depth=_depth,
            heads=_heads,
            mlp_width=_mlp_width,
            mlp="swiglu" if _size == "g" else "plain",
            registers=_registers,
            layer_scale=1e-5,
            init_scheme="trunc02",
            pos_resize=_resize,
        )

# Small models for 32-pixel pictures, dropout 0.1 on attention weights and twice in the MLP.
_CIFAR_SIZES = {"S": (192, 12, 3), "B": (384, 12, 6), "L": (512, 24, 8)}
for _size, (_width, _depth, _heads) in _CIFAR_SIZES.items():
    register(
        f"CIFAR-ViT-{_size}/4",
        ViT,
        "the CIFAR-10 models Small, Base and Large of this project's first notes",
        num_classes=10,
        image_size=32,
        patch_size=4,
        width=_width,
        depth=_depth,
        heads=_heads,
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
