"""Recognition of the library that wrote a file of weights, and of their architecture.

    file_format, tensors = find_model(tensors, config)

Names of tensors decide. But first a `config.json` beside them is checked for an unsupported
architecture: some have the same names as a supported one.
"""

import importlib
import re
from collections.abc import Mapping
from typing import Any

from vit_jax.errors import UserError
from vit_jax.models import ARCHITECTURES
from vit_jax.weights import prefixes
from vit_jax.weights.formats import CheckpointFormat
from vit_jax.weights.io.safety import show
from vit_jax.weights.mapping import Tensors, summarize

# The first format that recognises a file reads it. Those of ViT are last: others have more names.
_WEIGHTS = [importlib.import_module(f"vit_jax.models.{name}.weights") for name in ARCHITECTURES]
_WEIGHTS = [*_WEIGHTS[1:], _WEIGHTS[0]]
FORMATS: tuple[CheckpointFormat, ...] = tuple(
    one for module in _WEIGHTS for one in getattr(module, "FORMATS", ())
)

_OF_VIT = ("ViT", "HybridViT", "ConvStemViT")
_READ = (
    "supported are ViT and its hybrids, DeiT, DeiT III, MAE, DINO, DINOv2, DINOv3, BEiT, EVA-02, "
    + ", ".join(sorted({one.architecture for one in FORMATS} - {*_OF_VIT}))
)

# Signatures of unsupported architectures: names that only they have. The first match counts, so
# that a whole comes before its parts: YOLOS before DETR, SAM before its encoder.
_OTHERS = {
    # Detectors, segmenters, and models of images and text.
    "SAM or another model with its mask decoder": (r"(.*\.)?mask_decoder\.iou_token\.weight",),
    "YOLOS without its heads, or under the names of its authors": (
        r"(.*\.)?detection_tokens",
        r"(.*\.)?det_token",
    ),
    "DETR without its heads, or one of its successors": (
        r"(.*\.)?(bbox_predictor|bbox_embed)(\.\d+)?\.layers\.\d+\.weight",
        r"(.*\.)?query_position_embeddings\.weight",
    ),
    "MaskFormer or Mask2Former": (r"(.*\.)?pixel_level_module\..*",),
    "EoMT": (r"(.*\.)?upscale_block\.block\.\d+\..*",),
    "UPerNet on another backbone than Swin and ConvNeXt": (r"(.*\.)?decode_head\.psp_modules\..*",),
    "ZoeDepth": (r"(.*\.)?metric_head\..*", r"core\.core\.scratch\..*"),
    "a DPT of another kind, such as for segmentation or on another backbone": (
        r"(.*\.)?neck\.reassemble_stage\..*",
        r"(.*\.)?scratch\.refinenet\d\..*",
    ),
    "BLIP": (
        r"(.*\.)?vision_model\.encoder\.layers\.\d+\.self_attn\.qkv\.weight",
        r"(visual_encoder\.blocks|text_decoder\.bert|Qformer\.bert)\..*",
    ),
    "OWL-ViT": (r"(.*\.)?(class_head|box_head)\.dense0\.weight",),
    "GroupViT": (r"(.*\.)?group_token",),
    "FLAVA": (r"(.*\.)?multimodal_model\..*",),
    "ALIGN": (r"(.*\.)?vision_model\.embeddings\.convolution\.weight",),
    "ViLT": (r"(.*\.)?embeddings\.text_embeddings\..*",),
    "Faster R-CNN or another detector of torchvision": (r"roi_heads\..*",),
    # Vision transformers.
    "data2vec": (r"data2vec_vision\..*",),
    "XCiT": (r"blocks\.\d+\.local_mp\..*",),
    "CrossViT": (r"blocks\.\d+\.revert_projs\..*",),
    "ConViT": (r"blocks\.\d+\.attn\.gating_param",),
    "T2T-ViT": (r"tokens_to_token\..*",),
    "TNT": (r"blocks\.\d+\.attn_in\..*",),
    "VOLO": (r"post_network\.\d+\..*",),
    "NesT": (r"levels\.\d+\.transformer_encoder\..*",),
    "PiT": (r"transformers\.\d+\.blocks\..*",),
    "CoaT": (r"serial_blocks\d\..*",),
    "ViTDet with convolutions behind blocks": (
        r"(.*\.)?encoder\.layer\.\d+\.attention\.qkv\.weight",
    ),
    "Pixtral's ViT": (r"(.*\.)?patch_conv\.weight",),
    # Pyramids with attention.
    "MViT": (
        r"(.*\.)?blocks\.\d+\.attn\.pool_[qkv]\.(weight|pool\.weight)",
        r"(.*\.)?blocks\.\d+\.attn\.norm_[qkv]\.weight",
    ),
    "Twins": (r"pos_block\.\d+\.proj\..*",),
    "DaViT": (r"stages\.\d+\.blocks\.\d+\.\d+\.cpe1\..*",),
    "FocalNet": (r"(.*\.)?modulation\.focal_layers\..*",),
    "GCViT": (r"stages\.\d+\.global_block\..*", r"levels\.\d+\.q_global_gen\..*"),
    "CvT": (r"(.*\.)?convolution_projection_query\..*",),
    # Convolutions and attention.
    "MaxViT": (
        r"stages\.\d+\.blocks\.\d+\.attn_grid\..*",
        r"blocks\.\d+\.layers\.\d+\.layers\.grid_attention\..*",
    ),
    "CoAtNet": (r"stages\.\d+\.blocks\.\d+\.attn\.rel_pos\..*",),
    "MobileViT": (
        r"stages\.\d+\.\d+\.transformer\.\d+\..*",
        r"(.*\.)?encoder\.layer\.\d+\.transformer\.layer\.\d+\..*",
        r"layer_\d\.\d+\.global_rep\..*",
    ),
    "LeViT": (
        r"stages\.\d+\.blocks\.\d+\.attn\.qkv\.linear\.weight",
        r"(.*\.)?encoder\.stages\.\d+\.layers\.\d+\.module\.queries_keys_values\..*",
        r"blocks\.\d+\.m\.qkv\.c\.weight",
    ),
    "TinyViT": (r"(stages|layers)\.\d+\.blocks\.\d+\.local_conv\..*",),
    "EfficientFormer": (r"(.*\.)?\d+\.token_mixer\.attention_biases",),
    "EfficientViT": (r".*\.context_module\.main\..*", r".*\.mixer\.m\.attn\..*"),
    "SwiftFormer": (r".*\.local_representation\..*",),
    "Next-ViT": (r".*\.mhca\.group_conv3x3\.weight",),
    "FastViT": (r".*\.token_mixer\.mixer\.(identity|conv_kxk|reparam_conv)\..*",),
    "a network of timm with attention in the stages of a ResNet, such as BoTNet or HaloNet": (
        r"stages\.\d+\.\d+\.self_attn\..*",
    ),
    # No attention.
    "InceptionNeXt": (r".*\.token_mixer\.dwconv_hw\.weight",),
    "PoolFormer or another MetaFormer": (
        r"stages\.\d+\.blocks\.\d+\.(layer_scale1|res_scale1)\.scale",
        r"stages\.\d+\.blocks\.\d+\.mlp\.act\.scale",
        r"(.*\.)?encoder\.block\.\d+\.\d+\.before_norm\.weight",
        r"network\.\d+\.\d+\.layer_scale_[12]",
    ),
    "gMLP": (r"blocks\.\d+\.mlp_channels\.gate\..*",),
    "ResMLP": (r"blocks\.\d+\.linear_tokens\.weight",),
    "ConvMixer": (r"blocks\.\d+\.0\.fn\.0\.weight",),
    "EfficientNetV2, or another EfficientNet with fused blocks": (
        r"blocks\.\d+\.\d+\.conv_exp\.weight",
        r"features\.4\.0\.block\.2\.fc1\.weight",
    ),
    "EfficientNet of transformers": (r"(efficientnet\.)?encoder\.blocks\.\d+\.squeeze_excite\..*",),
    "RegNet": (
        r"s\d\.b\d+\.conv1\.(conv\.)?weight",
        r"trunk_output\..*",
        r"regnet\..*",
        r"(.*\.)?encoder\.stages\.\d+\.layers\.\d+\.layer\.\d+\.attention\..*",
    ),
    "DenseNet": (r"features\.denseblock\d+\..*",),
    "VGG": (r"features\.(1[1-9]|[2-5]\d)\.weight",),
    "NFNet": (r".*\.skipinit_gain", r"stem\.conv1\.gain"),
    "EVA-02 under the names of its authors": (
        r"(blocks\.\d+\.attn\.)?rope\.freqs_(cos|sin)",
        r"blocks\.\d+\.(attn\.inner_attn_ln|mlp\.ffn_ln)\..*",
    ),
    "BEiT before fine-tuning, whose blocks share one table of relative positions": (
        r"rel_pos_bias\.relative_position_bias_table",
        r"(beit\.)?(encoder\.relative|shared)_position_bias\.relative_position_bias_table",
    ),
    "another BEiT or EVA of timm": (r"blocks\.\d+\.attn\.(q_bias|relative_position_bias_table)",),
    "timm's own Swin V2 (swinv2_cr)": (r".*\.attn\.meta_mlp\..*",),
    "a hybrid of ViT and another network than BiT's ResNet": (
        r"patch_embed\.backbone\.(conv1|layer1|\d+)\..*",
        r"patch_embed\.backbone\.stages\.\d+\.\d+\..*",
    ),
    "DINOv3": (r"rope_embed(dings)?\..*",),
    "SAM's ViT": (r"blocks\.\d+\.attn\.rel_pos_[hw]", r"(.*\.)?layers\.\d+\.attn\.rel_pos_[hw]"),
    "a ViT with relative positions of timm": (r"blocks\.\d+\.attn\.rel_pos\..*",),
    "a ViT with differential attention": (r"blocks\.\d+\.attn\.lambda_[qk]1",),
    "BEiT-3, or another ViT with norms inside attention": (r"blocks\.\d+\.attn\.norm\..*",),
    "SAM 2's Hiera": (r"pos_embed_window",),
    "Hiera": (
        r"blocks\.\d+\.proj\.(weight|bias)",
        r"(.*\.)?encoder\.stages\.\d+\.layers\.\d+\.attn\.qkv\.weight",
    ),
    "HRNet": (r"transition1\..*",),
    "Res2Net": (r"layer1\.0\.convs\.\d+\.weight",),
    "a ResNet with squeeze and excitation": (r"layer\d+\.\d+\.se\..*",),
    "ConvNeXt V2 with sparse convolutions": (r"(.*\.)?stages\.\d+\.\d+\.dwconv\.kernel",),
    "the head of DINO without its encoder": (r"last_layer\.weight_[gv]",),
    "EdgeNeXt": (r"stages\.\d+\.blocks\.\d+\.xca\..*",),
}
# What names of no format look like in general.
_KINDS = {
    "a relative of EfficientNet, such as a MobileNet": r"(.*\.)?conv_stem\.weight",
    "a relative of ResNet": r"(.*\.)?layer1\.0\..*",
    "a transformer": r"(.*\.)?(attn|attention|self_attn|self_attention)\..*",
    "a convolutional network with BatchNorm": r"(.*\.)?running_var",
}


def find_model(
    tensors: Tensors, config: Mapping[str, Any] | None = None
) -> tuple[CheckpointFormat, Tensors]:
    """Return the format of the tensor names, and the tensors without prefixes.

    Args:
        tensors: by their names in the file.
        config: the `config.json` beside it, if any.

    Raises:
        UserError: the architecture is not supported; the message names it if possible.
    """
    config = config or {}
    _check_config(config)
    named = _named(config)
    says = f"config.json says that this is {named}, and " if named else ""
    for level in prefixes.levels(tensors, is_model):
        file_format = _format_of(level)
        if looks_like := _looks_like(level, file_format):
            inside = prefixes.parts_with(level, _is_read) if level is tensors else []
            only = [f"; to read only the tensors under {show(p)}, use --part={p}" for p in inside]
            raise UserError(
                f"{says}the file looks like {looks_like}, which is not supported yet"
                f"{''.join(only[:1])}; {_READ}"
            )
        if file_format:
            _check_architecture(file_format, config)
            return file_format, level
    if named:
        raise UserError(
            f"{says}its names ({summarize(list(tensors))}) are of no supported architecture; the "
            f"nearest one is {_nearest_read(named)}"
        )
    known = ", ".join(sorted({file_format.name for file_format in FORMATS}))
    kinds = (k for k, like in _KINDS.items() if any(re.fullmatch(like, name) for name in tensors))
    kind = next(kinds, None)
    raise UserError(
        f"its names ({summarize(list(tensors))}) are of no supported library ({known})"
        f"{f'; they look like {kind}' if kind else ''}, and there is no config.json beside it; "
        f"{_READ}"
    )


def recognise(tensors: Tensors) -> CheckpointFormat:
    """Return the format of the tensor names; see `find_model`."""
    return find_model(tensors)[0]


def is_model(tensors: Tensors) -> bool:
    """Return whether the names are those of a model in some format."""
    return _format_of(tensors) is not None


# ----------------------------------------------------------------------------------------- inside


def _format_of(tensors: Tensors) -> CheckpointFormat | None:
    for file_format in FORMATS:
        if file_format.recognises(file_format.normalize_names(tensors)):
            return file_format
    return None


def _looks_like(tensors: Tensors, file_format: CheckpointFormat | None) -> str | None:
    """Return an architecture that has a name which the format, if any, has not."""
    for looks_like, patterns in _OTHERS.items():
        found = (n for n in tensors if any(re.fullmatch(pattern, n) for pattern in patterns))
        if any(file_format is None or not file_format.has(name) for name in found):
            return looks_like
    if file_format is not None and file_format.of_clips:
        return None
    if any(name.endswith(".weight") and array.ndim == 5 for name, array in tensors.items()):
        return "a model of videos, whose convolutions have a third axis"
    return None


def _is_read(tensors: Tensors) -> bool:
    """Return whether the names are those of a format and of nothing else."""
    file_format = _format_of(tensors)
    return file_format is not None and _looks_like(tensors, file_format) is None


# Supported models by model_type of transformers.
_MODEL_TYPES = tuple(dict.fromkeys(kind for one in FORMATS for kind in one.model_types))
_WRAPPER = "timm_wrapper"  # transformers' class around any model of timm

# Nearest supported architecture of an unsupported one: the first whose expression matches.
_NEAREST = {
    r"swin": "Swin",
    r"segformer|pvt|mit_b\d|glpn": "PVT v2",
    r"poolformer|twins": "PVT",
    r"dino": "DINOv2",
    r"convn|metaformer|focalnet|\bvan|edgenext|inception_next": "ConvNeXt",
    r"eff|mobilenet|mnasnet|mixnet|fbnet|tinynet|lcnet|ghostnet|mobileone": "EfficientNet",
    r"mixer|mlp": "MLP-Mixer",
    r"res2?ne|detr|regnet|densenet|vgg|dpn|cspnet|hrnet|nfnet|\bdla": "ResNet",
    r"\b(deit|cait|levit)": "DeiT",
}


def _check_config(config: Mapping[str, Any]) -> None:
    """Raise UserError if the configuration names an unsupported model."""
    kind = config.get("model_type")
    if kind is None or kind in _MODEL_TYPES or kind == _WRAPPER:
        return
    raise UserError(
        f"config.json says that this is {_named(config)}, which is not supported; of transformers' "
        f"models use {', '.join(_MODEL_TYPES)}; the nearest supported model is "
        f"{_nearest_read(str(kind))}"
    )


def _check_architecture(file_format: CheckpointFormat, config: Mapping[str, Any]) -> None:
    """Raise UserError for an architecture of timm with the names of another one."""
    name = str(config.get("architecture", ""))
    if file_format.others and re.fullmatch(file_format.others, name):
        raise UserError(
            f"config.json says that this is {_named(config)}, which has names of "
            f"{file_format.architecture} but another computation; it is not supported yet, and the "
            f"nearest supported model is {_nearest_read(name)}"
        )


def _named(config: Mapping[str, Any]) -> str | None:
    """Return the model in the configuration, in words; None if it has none."""
    kind, timms = config.get("model_type"), config.get("architecture")
    classes = config.get("architectures")
    if kind is not None and kind != _WRAPPER:
        by_class = f", {show(classes[0])}" if isinstance(classes, list) and classes else ""
        return f"model_type = {show(kind)}{by_class} of transformers"
    if timms is not None:
        return f"architecture = {show(timms)} of timm"
    return show(classes[0]) if isinstance(classes, list) and classes else None


def _nearest_read(name: str) -> str:
    found = (ours for like, ours in _NEAREST.items() if re.search(like, name.lower()))
    return next(found, "ViT")
