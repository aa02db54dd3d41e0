"""Image towers of CLIP, SigLIP and the Perception Encoder in files of image and text models.

The towers of transformers, alone or with their text tower, and those under OpenAI's names, which
open_clip and the Perception Encoder (PE) use too. A text tower and the projections to the space of
images and texts are left out: the features of a tower are what the projection reads.

Which GELU a file under OpenAI's names is for, it does not tell: OpenAI's own have the quick one,
most of open_clip the exact one. An `open_clip_config.json` beside it tells.

Source: Radford et al. 2021, "Learning Transferable Visual Models"; Cherti et al. 2023, open_clip;
Zhai et al. 2023, "Sigmoid Loss"; Bolya et al. 2025, "Perception Encoder"; transformers 5.24, by
running them.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.fields import pair
from vit_jax.models.vit.weights import hugging_face, timm
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import open_clip, processors
from vit_jax.weights.ecosystems.hugging_face_writing import activation_name
from vit_jax.weights.ecosystems.plain_vit import need_plain_vit
from vit_jax.weights.mapping import (
    CONV,
    SAME,
    TABLE,
    Layout,
    Row,
    Tensors,
    joint_attention,
    layer_norm,
    linear,
    split_attention,
)

# A token without the axes of size one that ours has in front.
_FLAT = Layout(lambda arrays, shape: arrays[0].reshape(shape), lambda x: [x.reshape(x.shape[-1])])


def _pooling(theirs: str, attention: str, norm: str, mlp: tuple[str, str]) -> tuple[Row, ...]:
    """Return the rows of attention pooling whose projections are one tensor."""
    return (
        Row("map_head/probe", f"{theirs}.probe", SAME),
        *joint_attention("map_head/attn", f"{theirs}.{attention}"),
        *layer_norm("map_head/norm", f"{theirs}.{norm}"),
        *linear("map_head/mlp/fc1", f"{theirs}.mlp.{mlp[0]}"),
        *linear("map_head/mlp/fc2", f"{theirs}.mlp.{mlp[1]}"),
    )


def tower_rows(prefix: str, patches: Layout) -> tuple[Row, ...]:
    """Return the rows of a tower of transformers, whose names begin with a prefix.

    patches: layout of the kernel of the patch embedding.
    """
    layer = f"{prefix}encoder.layers.{{i}}"
    return (
        *linear("patch_embed", f"{prefix}embeddings.patch_embedding", patches),
        Row("cls_token", f"{prefix}embeddings.class_embedding", _FLAT),
        Row("pos_embed", f"{prefix}embeddings.position_embedding.weight", TABLE),
        *layer_norm("pre_norm", f"{prefix}pre_layrnorm"),  # as it is spelled there
        *layer_norm("blocks_{i}/norm1", f"{layer}.layer_norm1"),
        *split_attention("blocks_{i}/attn", f"{layer}.self_attn"),
        *layer_norm("blocks_{i}/norm2", f"{layer}.layer_norm2"),
        *linear("blocks_{i}/mlp/fc1", f"{layer}.mlp.fc1"),
        *linear("blocks_{i}/mlp/fc2", f"{layer}.mlp.fc2"),
        *layer_norm("norm", f"{prefix}post_layernorm"),
        *_pooling(f"{prefix}head", "attention", "layernorm", ("fc1", "fc2")),
        *linear("head", "classifier"),
    )


HUGGING_FACE_ROWS = tower_rows("", CONV)
_BLOCK = "transformer.resblocks.{i}"
OPENAI_ROWS = (
    Row("patch_embed/kernel", "conv1.weight", CONV),
    Row("cls_token", "class_embedding", _FLAT),
    Row("pos_embed", "positional_embedding", TABLE),
    *layer_norm("pre_norm", "ln_pre"),
    *layer_norm("blocks_{i}/norm1", f"{_BLOCK}.ln_1"),
    *joint_attention("blocks_{i}/attn", f"{_BLOCK}.attn"),
    Row("blocks_{i}/ls1/gamma", f"{_BLOCK}.ls_1.gamma", SAME),
    *layer_norm("blocks_{i}/norm2", f"{_BLOCK}.ln_2"),
    *linear("blocks_{i}/mlp/fc1", f"{_BLOCK}.mlp.c_fc"),
    *linear("blocks_{i}/mlp/fc2", f"{_BLOCK}.mlp.c_proj"),
    Row("blocks_{i}/ls2/gamma", f"{_BLOCK}.ls_2.gamma", SAME),
    *layer_norm("norm", "ln_post"),
    *_pooling("attn_pool", "attn", "layernorm", ("c_fc", "c_proj")),
)

_CLIP = {"patch_bias": False, "embed_norm": True, "norm_eps": 1e-5, "pool": "cls"}
_SIGLIP = {"class_token": False, "pool": "map", "norm_eps": 1e-6, "activation": "gelu_tanh"}
_PE = {**_CLIP, "pos_resize": "torch-bilinear", "rotary": "pe", "class_token": True}
_ORIGINS = timm.ORIGINS
ORIGINS = {
    "clip": dataclasses.replace(_ORIGINS["clip"], fields={**_ORIGINS["clip"].fields, **_CLIP}),
    "openclip": dataclasses.replace(
        _ORIGINS["openclip"], fields={**_ORIGINS["openclip"].fields, **_CLIP}
    ),
    "siglip": formats.Origin(
        _SIGLIP,
        {**formats.HALF, "crop": 1.0, "interpolation": "bicubic", "resize": "squash"},
        "transformers' SiglipVisionConfig and SiglipImageProcessor",
    ),
    "pe": formats.Origin(
        _PE,
        {**formats.HALF, "crop": 1.0, "interpolation": "bilinear", "resize": "squash"},
        "Bolya et al. 2025: core/vision_encoder of facebookresearch/perception_models",
    ),
}
_HIDDEN = r"encoder\.layers\.\d+\.mlp\.fc1\.weight"
_TEXTS = "the tower of texts, and the projections to the space of images and texts"
IGNORED = {
    r"(text_model|text)\..*|(visual|text)_projection\.weight|logit_(scale|bias)": _TEXTS,
    r"proj|text_projection|token_embedding\.weight|ln_final\..*": _TEXTS,
    r"(text_model\.)?embeddings\.position_ids": "numbers of positions",
    r"input_resolution|context_length|vocab_size": "sizes",
    r"(.*\.)?attn_mask": "what a text may attend to",
}


def _describe_hugging_face(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a tower of transformers."""
    config = dict(config or {})
    names, root = hugging_face.class_names_of(config), config
    config |= section_of(config, "vision_config")
    is_clip = "embeddings.class_embedding" in tensors
    found = _clip_of(config) if is_clip else "siglip"
    known = ("clip", "openclip") if is_clip else ("siglip",)
    name, origin = formats.choose_origin(hints, {key: ORIGINS[key] for key in known}, found)
    if hints.image_size is None:
        size = formats.configured_size(config, "image_size")
        hints = dataclasses.replace(hints, image_size=size)
    fields = _sizes(
        tensors,
        hints,
        ("embeddings.patch_embedding.weight", "embeddings.position_embedding.weight"),
        (r"encoder\.layers\.(\d+)\.layer_norm1\.weight", _HIDDEN),
        is_clip,
        formats.configured_number(config, "num_attention_heads"),
    )
    fields |= {**origin.fields, "pos_resize": "torch-bicubic"}
    fields["num_classes"] = formats.outputs_of(tensors, "classifier.weight")
    if fields["num_classes"] or not (is_clip or "head.probe" in tensors):
        fields["pool"] = "mean"
    if "hidden_act" in config:
        fields["activation"] = hugging_face.activation_of(config)
    if "layer_norm_eps" in config:
        fields["norm_eps"] = hugging_face.positive_of(config, "layer_norm_eps")
    kind = "clip" if is_clip else "siglip"
    processor = root.get("preprocessor") or {}
    read = processors.read(processor, pair(fields["patch_size"]), kind)
    names = names if fields["num_classes"] else None
    return formats.ModelSpec(fields, {**origin.preprocessing, **read}, name, names)


# What transformers takes where a section of its configuration has no entry.
_DEFAULTS = {
    "clip": {
        "vision_config": {"num_attention_heads": 12},
        "text_config": {
            "num_attention_heads": 8,
            "hidden_act": "quick_gelu",
            "layer_norm_eps": 1e-5,
            "eos_token_id": 49407,
        },
    },
    "siglip": {
        "vision_config": {"num_attention_heads": 12},
        "text_config": {
            "num_attention_heads": 12,
            "hidden_act": "gelu_pytorch_tanh",
            "layer_norm_eps": 1e-6,
        },
    },
}
_DEFAULTS["siglip2"] = _DEFAULTS["siglip"]


def section_of(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the section of a tower, with transformers' defaults where the model is known.

    Old files have a second section, such as `vision_config_dict`, which wins.
    """
    found = dict(formats.configured_section(config, name))
    defaults = _DEFAULTS.get(str(config.get("model_type")), {}).get(name, {})
    old = formats.configured_section(config, f"{name}_dict")
    return {**defaults, **found, **({**defaults, **old} if old else {})}


def _clip_of(config: Mapping[str, Any]) -> str | None:
    """Return which CLIP the activation in a configuration is of; the class's default is quick."""
    if not config:
        return None
    quick = config.get("hidden_act", "quick_gelu") == "quick_gelu"
    return "clip" if quick else "openclip"


def _describe_openai(
    tensors: Tensors, config: Mapping[str, Any] | None, hints: formats.Hints
) -> formats.ModelSpec:
    """Return the spec of a tower under OpenAI's names."""
    has_pool, has_norm = "attn_pool.probe" in tensors, "ln_post.weight" in tensors
    known = ("pe",) if has_pool or not has_norm else ("clip", "openclip")
    settings = open_clip.Settings.of(config) if "openclip" in known else None
    found = None if settings is None else settings.origin
    name, origin = formats.choose_origin(hints, {key: ORIGINS[key] for key in known}, found)
    width, heads = formats.axes_of(tensors, "conv1.weight", "out, in, height, width")[0], None
    if settings is not None:
        heads = settings.image_heads(width)
        if hints.image_size is None:
            hints = dataclasses.replace(hints, image_size=settings.image_size)
    has_class = "class_embedding" in tensors
    hidden = r"transformer\.resblocks\.\d+\.mlp\.c_fc\.weight"
    fields = _sizes(
        tensors,
        hints,
        ("conv1.weight", "positional_embedding"),
        (r"transformer\.resblocks\.(\d+)\.ln_1\.weight", hidden),
        has_class,
        heads,
    )
    fields |= origin.fields
    preprocessing = dict(origin.preprocessing)
    if settings is not None:
        if name == settings.origin:
            fields |= settings.layers("image")
        preprocessing |= settings.preprocessing()
    if name == "pe":
        fields |= {"pool": "map" if has_pool else "mean", "class_token": has_class}
        if has_pool:
            hidden = formats.axes_of(tensors, "attn_pool.mlp.c_fc.weight", "out, in")[0]
            fields |= {"pool_heads": 8, "pool_prefix": True}
            fields["pool_mlp_width"] = None if hidden == fields["mlp_width"] else hidden
        fields["final_norm"] = has_norm
        scale = "transformer.resblocks.0.ls_1.gamma"
        fields["layer_scale"] = 0.1 if scale in tensors else None
    return formats.ModelSpec(fields, preprocessing, name)


def _sizes(
    tensors: Tensors,
    hints: formats.Hints,
    names: tuple[str, str],
    patterns: tuple[str, str],
    has_class: bool,
    heads: int | None,
) -> dict[str, Any]:
    """Return the fields that shapes tell.

    Args:
        names: of the patch embedding and of the position table.
        patterns: of the first norms of blocks, and of the first layers of MLPs.
    """
    width, in_channels, *patch = formats.axes_of(tensors, names[0], "out, in, height, width")
    rows = formats.axes_of(tensors, names[1], "rows, width")[0]
    _, size = formats.position_grid(rows, (int(has_class),), tuple(patch), hints)
    return {
        "num_classes": 0,
        "image_size": formats.side_or_pair(size),
        "patch_size": formats.side_or_pair(tuple(patch)),
        "in_channels": in_channels,
        "width": width,
        "depth": formats.count_blocks(tensors, patterns[0]),
        "heads": formats.need_heads(hints, heads, width),
        "mlp_width": formats.most_common_side(tensors, patterns[1], 0),
    }


def _normalize_hugging_face(tensors: Tensors) -> Tensors:
    """Remove the prefix of the image tower; towers of patches cut beforehand are no files of it."""
    prefix = "vision_model."
    first = "embeddings.patch_embedding.weight"
    if np.ndim(tensors.get(prefix + first, tensors.get(first))) != 4:
        return {}
    return {name.removeprefix(prefix): array for name, array in tensors.items()}


def _normalize_openai(tensors: Tensors) -> Tensors:
    """Remove the prefix of the image tower; texts have a transformer of the same names without."""
    if "visual.conv1.weight" not in tensors:
        return tensors
    texts = ("transformer.", "positional_embedding")
    others = {n: x for n, x in tensors.items() if not n.startswith("visual.")}
    others = {f"text.{n}" if n.startswith(texts) else n: x for n, x in others.items()}
    tower = {n: x for n, x in tensors.items() if n.startswith("visual.")}
    return {**others, **{n.removeprefix("visual."): x for n, x in tower.items()}}


WRITTEN = (
    *("num_classes", "image_size", "patch_size", "in_channels", "width", "depth", "heads"),
    *("mlp_width", "class_token", "pool", "activation", "norm_eps", "patch_bias", "embed_norm"),
)


def is_clip(fields: Mapping[str, Any]) -> bool:
    """Return whether a ViT of these fields is CLIP's, by its norms and pooling."""
    return fields["embed_norm"] and not fields["patch_bias"] and fields["pool"] == "cls"


def _writes(fields: Mapping[str, Any]) -> bool:
    """Return whether a model is a tower of CLIP or SigLIP, by its pooling and norms."""
    siglip = fields["pool"] == "map" and not fields["class_token"] and not fields["embed_norm"]
    return fields["rotary"] == "none" and (siglip or is_clip(fields))


def _config(fields: Mapping[str, Any], preprocessing: Preprocessing, class_names) -> dict[str, Any]:
    """Return transformers' `config.json` of a tower."""
    about_class = () if fields["class_token"] else ("pos_on_cls",)
    need_plain_vit("transformers' tower", fields, (*WRITTEN, *about_class))
    sides = [pair(fields[name]) for name in ("image_size", "patch_size")]
    if fields["num_classes"] or any(height != width for height, width in sides):
        raise UserError(
            "transformers' towers of CLIP and SigLIP have no classifier and only square images and "
            "patches; keep the run folder"
        )
    kind = "clip" if is_clip(fields) else "siglip"
    return {
        "architectures": ["CLIPVisionModel" if kind == "clip" else "SiglipVisionModel"],
        "model_type": f"{kind}_vision_model",
        "hidden_size": fields["width"],
        "intermediate_size": fields["mlp_width"],
        "num_hidden_layers": fields["depth"],
        "num_attention_heads": fields["heads"],
        "num_channels": fields["in_channels"],
        "image_size": sides[0][0],
        "patch_size": sides[1][0],
        "hidden_act": activation_name(fields["activation"]),
        "layer_norm_eps": fields["norm_eps"],
        "dtype": "float32",
    }


FORMATS = (
    formats.CheckpointFormat(
        name="huggingface",
        model_types=("clip", "clip_vision_model", "siglip", "siglip_vision_model"),
        signature=(
            r"embeddings\.patch_embedding\.weight",
            r"encoder\.layers\.0\.layer_norm1\.weight",
        ),
        rows=HUGGING_FACE_ROWS,
        describe=_describe_hugging_face,
        ignored={**IGNORED, r"head\..*": "the pooling that the classifier does not read"},
        normalize_names=_normalize_hugging_face,
        config=_config,
        preprocessor=processors.write,
        writes=_writes,
    ),
    formats.CheckpointFormat(
        name="openai",
        signature=(r"conv1\.weight", r"transformer\.resblocks\.0\.ln_1\.weight"),
        rows=OPENAI_ROWS,
        describe=_describe_openai,
        ignored=IGNORED,
        normalize_names=_normalize_openai,
    ),
)
