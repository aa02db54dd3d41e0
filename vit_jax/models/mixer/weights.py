"""Weights of MLP-Mixer: timm's names, and those of Google's npz files.

- Both have the same numbers in other layouts. timm computes Google's weights with the exact GELU,
  Google with the tanh approximation; each file gets the one of its library.
- timm has gated variants with the same names (gMixer), whose first MLP layer has twice the outputs
  of the second layer's inputs. They are not supported.
- The number of patches is a size of the token MLP, and determines the image size if it is a square.

Source of the names and facts: timm 1.0, `mlp_mixer.py`, by running it; google-research/
vision_transformer, `models_mixer.py` and `input_pipeline.py`.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.validation import pair
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import timm_arguments, timm_writing
from vit_jax.weights.mapping import CONV, SAME, Row, Tensors, layer_norm, linear

TIMM_ROWS = (
    *linear("patch_embed", "stem.proj", CONV),
    *layer_norm("blocks_{i}/norm1", "blocks.{i}.norm1"),
    *linear("blocks_{i}/token_mlp/fc1", "blocks.{i}.mlp_tokens.fc1"),
    *linear("blocks_{i}/token_mlp/fc2", "blocks.{i}.mlp_tokens.fc2"),
    *layer_norm("blocks_{i}/norm2", "blocks.{i}.norm2"),
    *linear("blocks_{i}/channel_mlp/fc1", "blocks.{i}.mlp_channels.fc1"),
    *linear("blocks_{i}/channel_mlp/fc2", "blocks.{i}.mlp_channels.fc2"),
    *layer_norm("norm", "norm"),
    *linear("head", "head"),
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
    "timm": formats.Origin(
        {"activation": "gelu", "norm_eps": 1e-6},
        {**formats.HALF, "crop": 0.875, "interpolation": "bicubic"},
        "timm's defaults for `mixer_*`, where no config.json says otherwise",
    ),
    "miil": formats.Origin(
        {"activation": "gelu", "norm_eps": 1e-6},
        {"mean": (0.0,), "std": (1.0,), "crop": 0.875, "interpolation": "bilinear"},
        "Ridnik et al. 2021, ImageNet-21K Pretraining for the Masses: timm's `*_miil_*`",
    ),
}
GOOGLE_ORIGINS = {
    "google": formats.Origin(
        {"activation": "gelu_tanh", "norm_eps": 1e-6},
        {**formats.HALF, "crop": 1.0, "interpolation": "bilinear", "resize": "squash"},
        "vision_transformer: models_mixer.py, and input_pipeline.py, which does not antialias",
    )
}
GOOGLE_IGNORED = {r"opt/.*": "the state of the optimizer"}

_PREFIXES = ("", "params/", "opt/target/")  # possible prefixes of Google's names
# Arguments of timm's class that are read, or are for training.
_READ = ("patch_size", "num_blocks", "embed_dim", "mlp_ratio", "nlhb")


def describe_timm(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file with timm's names."""
    config = config or {}
    pretrained = timm_arguments.pretrained_of(config)
    arguments = formats.configured_section(config, "model_args")
    timm_arguments.check_plain(config, _READ, {"act_layer": ("gelu",), "stem_norm": (False,)})
    found = None
    if "architecture" in config:
        found = "miil" if "miil" in str(pretrained.get("tag", "")) else "timm"
    origin_name, origin = formats.choose_origin(hints, TIMM_ORIGINS, found)
    width, in_channels, *patch = formats.axes_of(
        tensors, "stem.proj.weight", "out, in, height, width"
    )
    hidden = {}
    for mlp in ("tokens", "channels"):
        name = f"blocks.0.mlp_{mlp}"
        given = formats.axes_of(tensors, f"{name}.fc1.weight", "out, in")[0]
        hidden[mlp] = formats.axes_of(tensors, f"{name}.fc2.weight", "out, in")[1]
        if given != hidden[mlp]:
            raise UserError(
                f"{name}.fc1 has {given} outputs, but fc2 {hidden[mlp]} inputs: the MLP is gated, "
                "as in timm's gMixer, which is not supported yet"
            )
    tokens = formats.axes_of(tensors, "blocks.0.mlp_tokens.fc1.weight", "out, in")[1]
    size = hints.image_size or formats.configured_size(arguments, "img_size")
    if size is None:
        size = timm_arguments.input_size_of(pretrained)
    fields = {
        "num_classes": _outputs(tensors, "head.weight", 0),
        "image_size": formats.side_or_pair(_image_size(tokens, tuple(patch), size)),
        "patch_size": formats.side_or_pair(tuple(patch)),
        "in_channels": in_channels,
        "width": width,
        "depth": formats.count_blocks(tensors, r"blocks\.(\d+)\.norm1\.weight"),
        "token_mlp_width": hidden["tokens"],
        "channel_mlp_width": hidden["channels"],
        **origin.fields,
    }
    names = timm_arguments.label_names(config, fields["num_classes"])
    return formats.ModelSpec(
        fields,
        {**origin.preprocessing, **timm_arguments.preprocessing_of({}, pretrained, tuple(patch))},
        origin_name,
        names,
    )


def describe_google(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a Google file; expects normalized names."""
    origin_name, origin = formats.choose_origin(hints, GOOGLE_ORIGINS)
    *patch, in_channels, width = formats.axes_of(tensors, "stem/kernel", "height, width, in, out")
    block = "MixerBlock_0"
    tokens, token_mlp = formats.axes_of(tensors, f"{block}/token_mixing/Dense_0/kernel", "in, out")
    classes = _outputs(tensors, "head/kernel", 1)
    fields = {
        "num_classes": classes,
        "image_size": formats.side_or_pair(_image_size(tokens, tuple(patch), hints.image_size)),
        "patch_size": formats.side_or_pair(tuple(patch)),
        "in_channels": in_channels,
        "width": width,
        "depth": formats.count_blocks(tensors, r"MixerBlock_(\d+)/LayerNorm_0/scale"),
        "token_mlp_width": token_mlp,
        "channel_mlp_width": formats.axes_of(
            tensors, f"{block}/channel_mixing/Dense_0/kernel", "in, out"
        )[1],
        **origin.fields,
    }
    notes = ()
    if classes and formats.all_zero(tensors["head/kernel"]):
        notes = (
            f"the head of {classes} outputs is all zeros, so that its outputs are meaningless; set "
            "num_classes for a new head, or use the features",
        )
    return formats.ModelSpec(fields, dict(origin.preprocessing), origin_name, notes=notes)


def normalize_google(tensors: Tensors) -> Tensors:
    """Remove the prefix from names."""
    prefix = next((p for p in _PREFIXES if f"{p}stem/kernel" in tensors), "")
    return {name.removeprefix(prefix): array for name, array in tensors.items()}


def timm_config(
    fields: Mapping[str, Any], preprocessing: Preprocessing, class_names
) -> dict[str, Any]:
    """Return timm's `config.json`, for `timm.create_model("local-dir:FOLDER")`.

    Raises UserError if timm does not support a field. Its names have fixed sizes of patch,
    depth and width; the hidden widths of the MLPs and the image size are arguments.
    """
    needed = {"activation": "gelu", "norm_eps": 1e-6}
    formats.need("timm's config.json", fields, needed, " of a Mixer")
    sizes = (*pair(fields["patch_size"]), fields["depth"], fields["width"])
    if sizes not in _TIMM_NAMES:
        height, width, depth, channels = sizes
        raise UserError(
            f"timm has no Mixer with patches of {height} x {width} and {depth} blocks of width "
            f"{channels}, and its names let none of these be changed; it has those of Mixer-S, B "
            "and L with patches of 16 and 32; keep the run folder"
        )
    return {
        "architecture": _TIMM_NAMES[sizes],
        "num_classes": fields["num_classes"],
        "model_args": {
            "img_size": fields["image_size"],
            "in_chans": fields["in_channels"],
            "mlp_ratio": [
                timm_writing.mlp_ratio(fields[f"{mlp}_mlp_width"], fields["width"])
                for mlp in ("token", "channel")
            ],
        },
        "pretrained_cfg": {
            **timm_writing.pretrained_cfg(
                fields, preprocessing, class_names, first="stem.proj", classifier="head"
            ),
            "fixed_input_size": True,
        },
    }


# ----------------------------------------------------------------------------------------- inside

# timm's models by the height and width of their patches, their depth and their width.
_TIMM_NAMES = {
    (patch, patch, depth, width): f"mixer_{size}{patch}_224"
    for size, depth, width in (("s", 8, 512), ("b", 12, 768), ("l", 24, 1024))
    for patch in (16, 32)
}


def _outputs(tensors: Tensors, name: str, axis: int) -> int:
    """Return the number of classes; 0 without a head."""
    return (
        formats.axes_of(tensors, name, ("out, in", "in, out")[axis])[axis] if name in tensors else 0
    )


def _image_size(
    tokens: int, patch: tuple[int, int], size: tuple[int, int] | None
) -> tuple[int, int]:
    """Return (height, width) of the images, from the configuration, the hints, or a square grid."""
    if size is None:
        side = math.isqrt(tokens)
        if side * side != tokens:
            raise UserError(
                f"the token MLP is made for {tokens} patches, which are not a square; set the "
                "image size with --file-size=HEIGHTxWIDTH"
            )
        return side * patch[0], side * patch[1]
    grid = [length // p for length, p in zip(size, patch, strict=True)]
    if grid[0] * grid[1] != tokens:
        raise UserError(
            f"an image of {size[0]} x {size[1]} pixels has {grid[0]} x {grid[1]} patches of "
            f"{patch[0]} x {patch[1]}, but the token MLP is made for {tokens}; use the size that "
            "the model was trained with"
        )
    return grid[0] * patch[0], grid[1] * patch[1]


_TIMM = formats.CheckpointFormat(
    name="timm",
    signature=(r"stem\.proj\.weight", r"blocks\.0\.mlp_tokens\.fc1\.weight"),
    rows=TIMM_ROWS,
    describe=describe_timm,
    config=timm_config,
    architecture="Mixer",
    others=r"(gmixer|gmlp|resmlp)_.*",
)

FORMATS = (
    _TIMM,
    dataclasses.replace(
        _TIMM,
        name="google",
        signature=(r"stem/kernel", r"MixerBlock_0/token_mixing/Dense_0/kernel"),
        rows=GOOGLE_ROWS,
        describe=describe_google,
        ignored=GOOGLE_IGNORED,
        normalize_names=normalize_google,
        config=None,
    ),
)
