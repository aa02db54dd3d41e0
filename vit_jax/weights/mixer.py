"""MLP-Mixer's weights: timm's names, and those of Google's npz files.

What is notable here:
- Both have the same numbers in other layouts. timm computes Google's weights with the exact GELU,
  Google itself with the one of tanh, and so each is read.
- timm has gated relatives under the same names (gMixer), where the first layer of an MLP gives
  twice what the second one takes. They are refused.
- The number of patches is a size of the token MLP, and says the picture size where it is a square.

Source of the names and facts: timm 1.0, `mlp_mixer.py`, by running it; google-research/
vision_transformer, `models_mixer.py` and `input_pipeline.py`.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.weights.ecosystem import (
    HALF,
    Asked,
    Description,
    Ecosystem,
    Origin,
    all_zero,
    axes_of,
    choose_origin,
    configured_section,
    configured_size,
    count_blocks,
    side_or_pair,
)
from vit_jax.weights.tables import CONV, SAME, Row, Tensors, both, norm

TIMM_ROWS = (
    *both("patch_embed", "stem.proj", CONV),
    *norm("blocks_{i}/norm1", "blocks.{i}.norm1"),
    *both("blocks_{i}/token_mlp/fc1", "blocks.{i}.mlp_tokens.fc1"),
    *both("blocks_{i}/token_mlp/fc2", "blocks.{i}.mlp_tokens.fc2"),
    *norm("blocks_{i}/norm2", "blocks.{i}.norm2"),
    *both("blocks_{i}/channel_mlp/fc1", "blocks.{i}.mlp_channels.fc1"),
    *both("blocks_{i}/channel_mlp/fc2", "blocks.{i}.mlp_channels.fc2"),
    *norm("norm", "norm"),
    *both("head", "head"),
)


def _same(ours: str, theirs: str, *parts: str) -> tuple[Row, ...]:
    return tuple(Row(f"{ours}/{part}", f"{theirs}/{part}", SAME) for part in parts)


_LAYER, _NORM = ("kernel", "bias"), ("scale", "bias")

GOOGLE_ROWS = (
    *_same("patch_embed", "stem", *_LAYER),
    *_same("blocks_{i}/norm1", "MixerBlock_{i}/LayerNorm_0", *_NORM),
    *_same("blocks_{i}/token_mlp/fc1", "MixerBlock_{i}/token_mixing/Dense_0", *_LAYER),
    *_same("blocks_{i}/token_mlp/fc2", "MixerBlock_{i}/token_mixing/Dense_1", *_LAYER),
    *_same("blocks_{i}/norm2", "MixerBlock_{i}/LayerNorm_1", *_NORM),
    *_same("blocks_{i}/channel_mlp/fc1", "MixerBlock_{i}/channel_mixing/Dense_0", *_LAYER),
    *_same("blocks_{i}/channel_mlp/fc2", "MixerBlock_{i}/channel_mixing/Dense_1", *_LAYER),
    *_same("norm", "pre_head_layer_norm", *_NORM),
    *_same("head", "head", *_LAYER),
)

TIMM_ORIGINS = {
    "timm": Origin(
        {"activation": "gelu", "norm_eps": 1e-6},
        {**HALF, "crop": 0.875, "interpolation": "bicubic"},
        "timm's defaults for `mixer_*`, where no config.json says otherwise",
    ),
    "miil": Origin(
        {"activation": "gelu", "norm_eps": 1e-6},
        {"mean": (0.0,), "std": (1.0,), "crop": 0.875, "interpolation": "bilinear"},
        "Ridnik et al. 2021, ImageNet-21K Pretraining for the Masses: timm's `*_miil_*`",
    ),
}
GOOGLE_ORIGINS = {
    "google": Origin(
        {"activation": "gelu_tanh", "norm_eps": 1e-6},
        {**HALF, "crop": 1.0, "interpolation": "bilinear", "resize": "squash"},
        "vision_transformer: models_mixer.py, and input_pipeline.py, which does not antialias",
    )
}
GOOGLE_IGNORED = {r"opt/.*": "the state of the optimizer"}

_PREFIXES = ("", "params/", "opt/target/")  # what may stand before all of Google's names


def describe_timm(tensors: Tensors, config: Mapping[str, Any] | None, asked: Asked) -> Description:
    """What a file with timm's names holds."""
    config = config or {}
    pretrained = configured_section(config, "pretrained_cfg")
    arguments = configured_section(config, "model_args")
    found = None
    if "architecture" in config:
        found = "miil" if "miil" in str(pretrained.get("tag", "")) else "timm"
    origin_name, origin = choose_origin(asked, TIMM_ORIGINS, found)
    width, in_channels, *patch = axes_of(tensors, "stem.proj.weight", "out, in, height, width")
    hidden = {}
    for mlp in ("tokens", "channels"):
        name = f"blocks.0.mlp_{mlp}"
        given = axes_of(tensors, f"{name}.fc1.weight", "out, in")[0]
        hidden[mlp] = axes_of(tensors, f"{name}.fc2.weight", "out, in")[1]
        if given != hidden[mlp]:
            raise UserError(
                f"{name}.fc1 gives {given} numbers and fc2 takes {hidden[mlp]}: the MLP is gated, "
                "as in timm's gMixer, which cannot be read yet"
            )
    tokens = axes_of(tensors, "blocks.0.mlp_tokens.fc1.weight", "out, in")[1]
    size = asked.image_size or configured_size(arguments, "img_size")
    if size is None:
        size = configured_size({"input_size": _sides(pretrained)}, "input_size")
    fields = {
        "num_classes": _outputs(tensors, "head.weight", 0),
        "image_size": side_or_pair(_image_size(tokens, tuple(patch), size)),
        "patch_size": side_or_pair(tuple(patch)),
        "in_channels": in_channels,
        "width": width,
        "depth": count_blocks(tensors, r"blocks\.(\d+)\.norm1\.weight"),
        "token_mlp_width": hidden["tokens"],
        "channel_mlp_width": hidden["channels"],
        **origin.fields,
    }
    names = pretrained.get("label_names") if fields["num_classes"] else None
    return Description(
        fields,
        {**origin.preprocessing, **_preprocessing(pretrained)},
        origin_name,
        tuple(names) if names else None,
    )


def describe_google(
    tensors: Tensors, config: Mapping[str, Any] | None, asked: Asked
) -> Description:
    """What a file of Google's holds; the tensors are tidy."""
    origin_name, origin = choose_origin(asked, GOOGLE_ORIGINS)
    *patch, in_channels, width = axes_of(tensors, "stem/kernel", "height, width, in, out")
    block = "MixerBlock_0"
    tokens, token_mlp = axes_of(tensors, f"{block}/token_mixing/Dense_0/kernel", "in, out")
    classes = _outputs(tensors, "head/kernel", 1)
    fields = {
        "num_classes": classes,
        "image_size": side_or_pair(_image_size(tokens, tuple(patch), asked.image_size)),
        "patch_size": side_or_pair(tuple(patch)),
        "in_channels": in_channels,
        "width": width,
        "depth": count_blocks(tensors, r"MixerBlock_(\d+)/LayerNorm_0/scale"),
        "token_mlp_width": token_mlp,
        "channel_mlp_width": axes_of(tensors, f"{block}/channel_mixing/Dense_0/kernel", "in, out")[
            1
        ],
        **origin.fields,
    }
    notes = ()
    if classes and all_zero(tensors["head/kernel"]):
        notes = (
            f"the head of {classes} outputs is all zeros: its answers say nothing; give "
            "num_classes to have a head of your own, or use the features",
        )
    return Description(fields, dict(origin.preprocessing), origin_name, notes=notes)


def tidy_google(tensors: Tensors) -> Tensors:
    """Names without a prefix."""
    prefix = next((p for p in _PREFIXES if f"{p}stem/kernel" in tensors), "")
    return {name.removeprefix(prefix): array for name, array in tensors.items()}


def timm_config(
    fields: Mapping[str, Any], preprocessing: Preprocessing, class_names
) -> dict[str, Any]:
    """The `config.json` with which timm makes the model: `timm.create_model("local-dir:FOLDER")`.

    Raises UserError where timm's arguments cannot say a field.
    """
    for name, value in {"activation": "gelu", "norm_eps": 1e-6}.items():
        if fields[name] != value:
            raise UserError(
                f"timm's config.json cannot say {name} = {fields[name]!r} of a Mixer: a model like "
                f"this has {value!r} there and would compute something else; keep the run folder"
            )
    sizes = tuple(fields[name] for name in ("width", "depth", "patch_size"))
    if sizes not in _ARCHITECTURES:
        raise UserError(
            "timm makes Mixers of its own widths, depths and patches only (S, B and L, with "
            f"patches of 16 and 32), and this one has {', '.join(map(str, sizes))}; "
            "keep the run folder"
        )
    return {
        "architecture": _ARCHITECTURES[sizes],
        "num_classes": fields["num_classes"],
        "model_args": {
            "img_size": fields["image_size"],
            "in_chans": fields["in_channels"],
            "mlp_ratio": [
                _ratio(fields[f"{mlp}_mlp_width"], fields["width"]) for mlp in ("token", "channel")
            ],
        },
        "pretrained_cfg": {
            "input_size": [fields["in_channels"], *preprocessing.size],
            "fixed_input_size": True,
            "mean": list(preprocessing.mean),
            "std": list(preprocessing.std),
            "crop_pct": preprocessing.crop,
            "crop_mode": {"cover": "center", "squash": "squash"}[preprocessing.resize],
            "interpolation": preprocessing.interpolation,
            "num_classes": fields["num_classes"],
            "label_names": list(class_names),
            "first_conv": "stem.proj",
            "classifier": "head",
        },
    }


# ----------------------------------------------------------------------------------------- inside


# timm's names by width, depth and patch size, which its arguments cannot change.
_ARCHITECTURES = {
    (width, depth, patch): f"mixer_{size}{patch}_224"
    for size, width, depth in (("s", 512, 8), ("b", 768, 12), ("l", 1024, 24))
    for patch in (16, 32)
}


def _outputs(tensors: Tensors, name: str, axis: int) -> int:
    """The number of classes; 0 where there is no head."""
    return axes_of(tensors, name, ("out, in", "in, out")[axis])[axis] if name in tensors else 0


def _image_size(
    tokens: int, patch: tuple[int, int], size: tuple[int, int] | None
) -> tuple[int, int]:
    """(height, width) of the pictures: what the configuration or the person says, or a square."""
    if size is None:
        side = math.isqrt(tokens)
        if side * side != tokens:
            raise UserError(
                f"the token MLP is made for {tokens} patches, which are no square; say which "
                "picture size that is: --file-size=HEIGHTxWIDTH"
            )
        return side * patch[0], side * patch[1]
    grid = [length // p for length, p in zip(size, patch, strict=True)]
    if grid[0] * grid[1] != tokens:
        raise UserError(
            f"a picture of {size[0]} x {size[1]} pixels has {grid[0]} x {grid[1]} patches of "
            f"{patch[0]} x {patch[1]}, and the token MLP is made for {tokens}; give the size that "
            "the model was trained with"
        )
    return grid[0] * patch[0], grid[1] * patch[1]


def _sides(pretrained: Mapping[str, Any]) -> Any:
    """Height and width of timm's input_size, channels first; what is no list is refused later."""
    sides = pretrained.get("input_size")
    return sides[1:] if isinstance(sides, list) else sides


def _preprocessing(pretrained: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of Preprocessing that a `pretrained_cfg` names; the size is the model's."""
    named = {
        "mean": pretrained.get("mean"),
        "std": pretrained.get("std"),
        "crop": pretrained.get("crop_pct"),
        "interpolation": pretrained.get("interpolation"),
        "resize": {"center": "cover", "squash": "squash"}.get(pretrained.get("crop_mode")),
    }
    return {k: tuple(v) if isinstance(v, list) else v for k, v in named.items() if v is not None}


def _ratio(hidden: int, width: int) -> float:
    """What timm computes the hidden width from, by cutting off digits."""
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else math.nextafter(ratio, math.inf)


_TIMM = Ecosystem(
    name="timm",
    marks=(r"stem\.proj\.weight", r"blocks\.0\.mlp_tokens\.fc1\.weight"),
    rows=TIMM_ROWS,
    describe=describe_timm,
    config=timm_config,
    architecture="Mixer",
)

ECOSYSTEMS = (
    _TIMM,
    dataclasses.replace(
        _TIMM,
        name="google",
        marks=(r"stem/kernel", r"MixerBlock_0/token_mixing/Dense_0/kernel"),
        rows=GOOGLE_ROWS,
        describe=describe_google,
        ignored=GOOGLE_IGNORED,
        tidy=tidy_google,
        config=None,
    ),
)
