"""timm's names of the image towers that open_clip is built around: SigLIP and Perception Encoder.

open_clip passes no sizes to timm: the name of the architecture stands for all of them, for the size
of images and for the activation. Only towers of published sizes have one.

Source: timm 1.0.31, `vit_*_siglip_*` and `vit_pe_core_*`, by running them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vit_jax.errors import UserError
from vit_jax.models.fields import pair
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import timm_arguments
from vit_jax.weights.ecosystems.plain_vit import need_plain_vit

_SIZES = ("width", "depth", "heads", "mlp_width", "patch_size")


@dataclass(frozen=True)
class Family:
    """Towers that differ in size.

    title: in messages. fields: values that all have; others are a ViT's defaults. sizes: the start
    of a name to `_SIZES` and the sides of images. usual: values that most have. own: the start of a
    name to its values of the same fields. free: fields that make no other computation.
    projection: as `open_clip.timm_tower` has it.
    """

    title: str
    fields: Mapping[str, Any]
    sizes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    usual: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    free: tuple[str, ...] = ()
    projection: str | None = "linear"


_EVERY = {"num_classes": 0, "in_channels": 3, "pool": "map"}
SIGLIP = Family(
    "SigLIP",
    {**_EVERY, "class_token": False, "norm_eps": 1e-6},
    {
        "vit_base_patch32_siglip": ((768, 12, 12, 3072, 32), (256,)),
        "vit_base_patch16_siglip": ((768, 12, 12, 3072, 16), (224, 256, 384, 512)),
        "vit_large_patch16_siglip": ((1024, 24, 16, 4096, 16), (256, 384, 512)),
        "vit_so400m_patch14_siglip": ((1152, 27, 16, 4304, 14), (224, 378)),
        "vit_so400m_patch16_siglip": ((1152, 27, 16, 4304, 16), (256, 384, 512)),
        "vit_giantopt_patch16_siglip": ((1536, 40, 16, 6144, 16), (256, 384)),
    },
    free=("pos_on_cls",),  # without a class token
)
PERCEPTION_ENCODER = Family(
    "the Perception Encoder",
    {
        **_EVERY,
        **{"pool_heads": 8, "pool_prefix": True, "embed_norm": True, "patch_bias": False},
        **{"rotary": "pe", "norm_eps": 1e-5},
    },
    {
        "vit_pe_core_tiny_patch16": ((192, 12, 3, 768, 16), (384,)),
        "vit_pe_core_small_patch16": ((384, 12, 6, 1536, 16), (384,)),
        "vit_pe_core_base_patch16": ((768, 12, 12, 3072, 16), (224,)),
        "vit_pe_core_large_patch14": ((1024, 24, 16, 4096, 14), (336,)),
        "vit_pe_core_gigantic_patch14": ((1536, 50, 16, 8960, 14), (448,)),
    },
    usual={"class_token": True, "pool_mlp_width": None},
    own={"vit_pe_core_gigantic_patch14": {"class_token": False, "pool_mlp_width": 6144}},
    projection=None,
)


def family_of(fields: Mapping[str, Any]) -> Family | None:
    """Return the family of a ViT, by its pooling, norms and positions; None for other ViTs."""
    if fields["pool"] != "map":
        return None
    if fields["rotary"] == "pe":
        return PERCEPTION_ENCODER
    return None if fields["embed_norm"] or fields["class_token"] else SIGLIP


def name_of(family: Family, fields: Mapping[str, Any]) -> str:
    """Return timm's name of an image tower.

    Args:
        fields: of a ViT, as `resolved_fields` leaves them.

    Raises:
        UserError: open_clip has no such tower.
    """
    library = f"open_clip's image tower of {family.title}"
    formats.need(library, fields, family.fields)
    free = (*_SIZES, "image_size", "activation", "rotary_grid", *family.free)
    known = (*family.fields, *family.usual, *free)
    need_plain_vit(library, fields, known)
    found = {name: pair(fields[name]) for name in ("patch_size", "image_size")}
    squares = all(height == width for height, width in found.values())
    sizes = (*(fields[name] for name in _SIZES[:-1]), found["patch_size"][0])
    side = found["image_size"][0]
    start = next((name for name, (own, _) in family.sizes.items() if own == sizes), None)
    if start is None or not squares or side not in family.sizes[start][1]:
        shown = ", ".join(f"{n} = {x}" for n, x in zip(_SIZES, sizes, strict=True))
        sides = (
            "" if start is None else f"; with images of {_either(family.sizes[start][1])} it has"
        )
        raise UserError(
            f"{library} has published sizes only, and none with {shown} and images of "
            f"{found['image_size'][0]} x {found['image_size'][1]}{sides}; keep the run folder"
        )
    formats.need(f"timm's {start}", fields, family.own.get(start, family.usual))
    if fields["rotary_grid"] not in (None, side // sizes[-1]):
        raise UserError(
            f"timm's {start} rotates by the place on a grid of {side // sizes[-1]}, and the model "
            f"on one of {fields['rotary_grid']}; keep the run folder"
        )
    name = f"{start}_{side}"
    activation = timm_arguments.activation({"architecture": name}, gated=False, usual="gelu")
    if fields["activation"] != activation:
        raise UserError(
            f"open_clip computes {name} with activation = {activation!r}, and the model has "
            f"{fields['activation']!r}, which changes every number a little; use "
            "--to=huggingface, or set it in the model.json of a converted run to accept that"
        )
    return name


def _either(sides: tuple[int, ...]) -> str:
    return " or ".join(map(str, sides))
