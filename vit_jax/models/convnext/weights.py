"""Weights of ConvNeXt: names of timm, the authors, torchvision and transformers.

timm and transformers are written too. transformers' last norm has an epsilon of its own, 1e-12,
where the authors and all other norms have 1e-6; here it is the authors' in every norm, which
changes nothing that a float32 shows while pooled features are about as large as 1.

Source of the names and facts: the ConvNeXt repository (Liu et al. 2022), `convnext.py`; timm 1.0,
torchvision 0.28 and transformers 5, by running them.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from vit_jax.data import Preprocessing
from vit_jax.data.images.preprocess import crop_of
from vit_jax.errors import UserError
from vit_jax.models.validation import pair
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import convolutions, processors, timm_arguments
from vit_jax.weights.ecosystems.convolutions import CONV_AXES, rows_of
from vit_jax.weights.mapping import CONV, SAME, Row, Tensors, layer_norm, linear

_FIELDS = {"norm_eps": 1e-6}
_BICUBIC = {**formats.IMAGENET, "crop": 0.875, "interpolation": "bicubic"}


# One column of names for each library: `{i}` is the number of a stage, `{j}` of a block.
def _rows(names: Mapping[str, str]) -> tuple[Row, ...]:
    return (
        *linear("stages_{i}/blocks_{j}/conv", names["conv"], CONV),
        *layer_norm("stages_{i}/blocks_{j}/norm", names["norm"]),
        *linear("stages_{i}/blocks_{j}/mlp/fc1", names["fc1"]),
        *linear("stages_{i}/blocks_{j}/mlp/fc2", names["fc2"]),
        Row("stages_{i}/blocks_{j}/ls/gamma", names["scale"], SAME),
        *layer_norm("stages_{i}/downsample/norm", names["downsample"] + ".0"),
        *linear("stages_{i}/downsample/conv", names["downsample"] + ".1", CONV),
        *linear("patch_embed", names["patch"], CONV),
        *layer_norm("pre_norm", names["pre_norm"]),
        *layer_norm("norm", names["last_norm"]),
        *linear("head", names["head"]),
    )


_TIMM = {
    "conv": "stages.{i}.blocks.{j}.conv_dw",
    "norm": "stages.{i}.blocks.{j}.norm",
    "fc1": "stages.{i}.blocks.{j}.mlp.fc1",
    "fc2": "stages.{i}.blocks.{j}.mlp.fc2",
    "scale": "stages.{i}.blocks.{j}.gamma",
    "downsample": "stages.{i}.downsample",
    "patch": "stem.0",
    "pre_norm": "stem.1",
    "last_norm": "head.norm",
    "head": "head.fc",
}
_ORIGINAL = {
    "conv": "stages.{i}.{j}.dwconv",
    "norm": "stages.{i}.{j}.norm",
    "fc1": "stages.{i}.{j}.pwconv1",
    "fc2": "stages.{i}.{j}.pwconv2",
    "scale": "stages.{i}.{j}.gamma",
    "downsample": "downsample_layers.{i}",
    "patch": "downsample_layers.0.0",
    "pre_norm": "downsample_layers.0.1",
    "last_norm": "norm",
    "head": "head",
}
_LAYER = "encoder.stages.{i}.layers.{j}"
_TRANSFORMERS = {
    "conv": f"{_LAYER}.dwconv",
    "norm": f"{_LAYER}.layernorm",
    "fc1": f"{_LAYER}.pwconv1",
    "fc2": f"{_LAYER}.pwconv2",
    "scale": f"{_LAYER}.layer_scale_parameter",
    "downsample": "encoder.stages.{i}.downsampling_layer",
    "patch": "embeddings.patch_embeddings",
    "pre_norm": "embeddings.layernorm",
    "last_norm": "layernorm",
    "head": "classifier",
}
# After `torchvision_names`, which numbers stages and downsampling like the others do.
_TORCHVISION = {
    "conv": "stages.{i}.{j}.block.0",
    "norm": "stages.{i}.{j}.block.2",
    "fc1": "stages.{i}.{j}.block.3",
    "fc2": "stages.{i}.{j}.block.5",
    "scale": "stages.{i}.{j}.layer_scale",
    "downsample": "downsamples.{i}",
    "patch": "features.0.0",
    "pre_norm": "features.0.1",
    "last_norm": "classifier.0",
    "head": "classifier.2",
}


def _fields(
    tensors: Tensors, names: Mapping[str, str], image_size: Any, norm_eps: float = 1e-6
) -> dict[str, Any]:
    """Return the model's fields, from the shapes of tensors under one library's names."""

    def named(part: str, stage: int = 0) -> str:
        return names[part].replace("{i}", str(stage)).replace("{j}", "0")

    conv = names["conv"] + ".weight"
    stages = range(convolutions.count_stages(tensors, conv.replace("{j}", "0")))
    if not stages:
        raise UserError(f"the file has no {named('conv')}.weight: it is incomplete")
    _, in_channels, patch, _ = formats.axes_of(tensors, f"{named('patch')}.weight", CONV_AXES)
    fc1 = tensors.get(f"{named('fc1')}.weight")
    if fc1 is not None and fc1.ndim == 4:
        raise UserError(
            "the file's MLPs are convolutions, as those of timm's small ConvNeXts "
            "(atto to nano), which is not supported yet"
        )
    hidden, width = formats.axes_of(tensors, f"{named('fc1')}.weight", "out, in")
    if hidden % width:
        raise UserError(f"its MLPs are {hidden} wide with {width} channels, which is no multiple")
    return {
        "num_classes": rows_of(tensors, f"{named('head')}.weight"),
        "image_size": image_size,
        "in_channels": in_channels,
        "depths": tuple(
            formats.count_blocks(
                tensors,
                conv.replace(".", r"\.").replace("{i}", str(stage)).replace("{j}", r"(\d+)"),
            )
            for stage in stages
        ),
        "widths": tuple(
            formats.axes_of(tensors, f"{named('conv', stage)}.weight", CONV_AXES)[0]
            for stage in stages
        ),
        "patch_size": patch,
        "kernel_size": formats.axes_of(tensors, f"{named('conv')}.weight", CONV_AXES)[2],
        "mlp_ratio": hidden // width,
        "layer_scale": 1e-6 if named("scale") in tensors else None,
        "norm_eps": norm_eps,
    }


# -------------------------------------------------------------------------------------------- timm

TIMM_ORIGINS = {
    "timm": formats.Origin(_FIELDS, _BICUBIC, "timm's defaults for `convnext_*`"),
}
# Arguments of timm's class: those that are read, and those with which it computes what is here.
_READ = ("depths", "dims", "patch_size", "kernel_sizes", "ls_init_value", "norm_eps", "act_layer")
_NEEDED = {
    "output_stride": (32,),
    "stem_type": ("patch",),
    "head_norm_first": (False,),
    "conv_mlp": (False,),
    "conv_bias": (True,),
    "use_grn": (False,),
    "norm_layer": ("layernorm",),
}


def timm_describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file with timm's names."""
    config = config or {}
    settings = formats.configured_section(config, "model_args")
    if settings.get("act_layer", "gelu") != "gelu":
        raise UserError(
            f"config.json: act_layer = {settings['act_layer']!r}; ConvNeXt has 'gelu' here"
        )
    timm_arguments.check_plain(config, _READ, _NEEDED)
    origin_name, origin = formats.choose_origin(hints, TIMM_ORIGINS)
    # timm's largest, of OpenCLIP, has torch's own epsilon.
    usual = 1e-5 if str(config.get("architecture")).startswith("convnext_xxlarge") else 1e-6
    eps = settings.get("norm_eps") or usual
    if type(eps) is not float or not 0 < eps < 1:
        raise UserError(f"config.json: norm_eps = {eps!r} should be a number between 0 and 1")
    size = convolutions.size_of_images(hints, convolutions.timm_size(config))
    fields = _fields(tensors, _TIMM, size, eps)
    return formats.ModelSpec(
        fields,
        {**origin.preprocessing, **convolutions.timm_preprocessing(config)},
        origin_name,
        convolutions.timm_names(config, fields["num_classes"]),
    )


def timm_config(fields: Mapping[str, Any], preprocessing: Preprocessing, class_names) -> dict:
    """Return timm's `config.json`; UserError for fields that timm does not support."""
    formats.need("timm's config.json", fields, {"mlp_ratio": 4})
    _need_four_stages("timm", fields)
    architectures = {
        ((3, 3, 9, 3), 96): "convnext_tiny",
        ((3, 3, 27, 3), 96): "convnext_small",
        ((3, 3, 27, 3), 128): "convnext_base",
        ((3, 3, 27, 3), 192): "convnext_large",
    }
    sizes = (tuple(fields["depths"]), fields["widths"][0])
    arguments = {
        "depths": list(fields["depths"]),
        "dims": list(fields["widths"]),
        "patch_size": fields["patch_size"],
        "kernel_sizes": fields["kernel_size"],
        "ls_init_value": fields["layer_scale"],
        "norm_eps": fields["norm_eps"],
    }
    return convolutions.timm_config(
        architectures.get(sizes, "convnext_tiny"),
        arguments,
        fields,
        preprocessing,
        class_names,
        first="stem.0",
        classifier="head.fc",
    )


# ------------------------------------------------------------------ the authors', and torchvision's

ORIGINAL_ORIGINS = {
    "convnext": formats.Origin(
        _FIELDS, _BICUBIC, "the ConvNeXt repository: datasets.py, build_transform"
    ),
}
TORCHVISION_ORIGINS = {
    "torchvision": formats.Origin(
        _FIELDS,
        {**formats.IMAGENET, "interpolation": "bilinear"},
        "torchvision's IMAGENET1K_V1 weights and their transforms",
    ),
}
# torchvision's resize_size of each model, by its first depths and width; 224 are cut out.
_RESIZED = {(9, 96): 236, (27, 96): 230, (27, 128): 232, (27, 192): 232}


def original_describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file of the authors' repository."""
    origin_name, origin = formats.choose_origin(hints, ORIGINAL_ORIGINS)
    fields = _fields(tensors, _ORIGINAL, convolutions.size_of_images(hints, None))
    preprocessing = dict(origin.preprocessing)
    if min(pair(fields["image_size"])) >= 384:  # squeezed there, without a crop
        preprocessing |= {"crop": 1.0, "resize": "squash"}
    return formats.ModelSpec(fields, preprocessing, origin_name)


def torchvision_describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file with torchvision's names."""
    origin_name, origin = formats.choose_origin(hints, TORCHVISION_ORIGINS)
    fields = _fields(tensors, _TORCHVISION, convolutions.size_of_images(hints, None))
    resized = _RESIZED.get((max(fields["depths"]), fields["widths"][0]), 256)
    crop = crop_of((224, 224), (resized, resized))
    return formats.ModelSpec(fields, {**origin.preprocessing, "crop": crop}, origin_name)


def torchvision_names(tensors: Tensors) -> Tensors:
    """Number stages consecutively: torchvision counts the layers between them too.

    `features.1`, `.3`, ... are the stages, and `.2`, `.4`, ... what halves the image before one.
    """

    def renamed(name: str) -> str:
        first, number, *rest = name.split(".")
        if first != "features" or not number.isdecimal() or len(number) > 3 or number == "0":
            return name
        kind = "stages" if int(number) % 2 else "downsamples"
        return ".".join([kind, str(int(number) // 2), *rest])

    def is_convnext(name: str) -> bool:
        return name.startswith("features.1.0.block.5.")

    if not any(map(is_convnext, tensors)):
        return tensors
    return {
        renamed(name) if "." in name else name: (
            # (channels, 1, 1) of theirs
            array.reshape(-1) if name.endswith(".layer_scale") else array
        )
        for name, array in tensors.items()
    }


# ------------------------------------------------------------------------------------ transformers

TRANSFORMERS_ORIGINS = {
    "convnext": formats.Origin(
        _FIELDS,
        {**_BICUBIC, "crop_rounding": "down"},
        "the preprocessor_config.json of facebook/convnext-tiny-224",
    ),
}


def transformers_describe(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a file with the names of transformers."""
    config = config or {}
    if config.get("hidden_act", "gelu") != "gelu":
        raise UserError(
            f"config.json: hidden_act = {config['hidden_act']!r}; ConvNeXt has 'gelu' here"
        )
    eps = config.get("layer_norm_eps", 1e-12)
    if type(eps) not in (int, float) or not 0 <= eps <= 1e-6:
        raise UserError(
            f"config.json: layer_norm_eps = {eps!r} is that of the last norm alone, and the others "
            "have 1e-6; such a model is not supported yet"
        )
    origin_name, origin = formats.choose_origin(hints, TRANSFORMERS_ORIGINS)
    preprocessing = {
        **origin.preprocessing,
        **convolutions.transformers_preprocessing(config),
    }
    size = preprocessing.pop("size", None)
    fields = _fields(tensors, _TRANSFORMERS, convolutions.size_of_images(hints, size))
    names = convolutions.transformers_names(config, fields["num_classes"])
    return formats.ModelSpec(fields, preprocessing, origin_name, names)


def transformers_config(fields: Mapping[str, Any], preprocessing: Preprocessing, class_names):
    """Return transformers' `config.json`; UserError for fields that it does not support."""
    needed = {"mlp_ratio": 4, "kernel_size": 7, "norm_eps": 1e-6}
    formats.need("transformers' config.json", fields, needed)
    classes = ("ConvNextModel", "ConvNextForImageClassification")
    return {
        **convolutions.transformers_config("convnext", classes, fields, class_names),
        "patch_size": fields["patch_size"],
        "num_stages": len(fields["depths"]),
        "hidden_sizes": list(fields["widths"]),
        "depths": list(fields["depths"]),
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-6,  # of the last norm
        "layer_scale_init_value": fields["layer_scale"] or 0.0,
        "image_size": fields["image_size"],
    }


# ----------------------------------------------------------------------------------------- inside


def _need_four_stages(library: str, fields: Mapping[str, Any]) -> None:
    if len(fields["depths"]) != 4:
        raise UserError(
            f"{library}'s ConvNeXts have 4 stages, and this one has {len(fields['depths'])}"
        )


def _format(
    name: str,
    names: Mapping[str, str],
    describe: Callable[..., formats.ModelSpec],
    **more: Any,
) -> formats.CheckpointFormat:
    first = names["conv"].replace("{i}", "0").replace("{j}", "0") + ".weight"
    signature = (first.replace(".", r"\."), names["pre_norm"].replace(".", r"\.") + r"\.weight")
    return formats.CheckpointFormat(
        name=name,
        signature=signature,
        rows=_rows(names),
        describe=describe,
        architecture="ConvNeXt",
        **more,
    )


# timm's with the same names for blocks of another kind.
_OTHERS = r"convnextv2_.*|edgenext_.*|inception_next_.*"

FORMATS = (
    _format("timm", _TIMM, timm_describe, config=timm_config, others=_OTHERS),
    _format("convnext", _ORIGINAL, original_describe),
    _format("torchvision", _TORCHVISION, torchvision_describe, normalize_names=torchvision_names),
    _format(
        "huggingface",
        _TRANSFORMERS,
        transformers_describe,
        normalize_names=partial(convolutions.without_prefix, kind="convnext"),
        finish=partial(convolutions.with_prefix, kind="convnext"),
        config=transformers_config,
        preprocessor=processors.write,
    ),
)
