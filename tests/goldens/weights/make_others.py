"""Makes `others.json`: names of tensors of architectures that are not read, of other libraries.

    python -m tests.goldens.weights.make_others

needs torch, timm, transformers and torchvision. Models are built without memory, at the size that
the library gives them. Of names that differ in numbers alone the first is kept, no bias, and one
running statistic. Names of transformers are those of its files.

Repositories that are no packages are in `AUTHORS`, with names that stand in their code.
"""

import json
import re
from collections.abc import Collection
from pathlib import Path

import torch

from tests.goldens.weights.make_golden import import_timm, import_torchvision

TIMM = (
    *("samvit_base_patch16", "sam2_hiera_tiny", "hiera_tiny_224", "mobilevit_xxs"),
    *("mobilevitv2_050", "maxvit_nano_rw_256", "maxxvit_rmlp_nano_rw_256", "coatnet_nano_cc_224"),
    *("coatnet_rmlp_1_rw_224", "levit_128s", "xcit_nano_12_p8_224"),
    *("edgenext_xx_small", "mvitv2_tiny", "twins_pcpvt_small"),
    *("twins_svt_small", "poolformer_s12", "poolformerv2_s12", "caformer_s18"),
    *("efficientformer_l1", "efficientformerv2_s0", "tiny_vit_5m_224", "nest_tiny"),
    *("crossvit_9_240", "davit_tiny", "focalnet_tiny_srf", "gcvit_xxtiny", "volo_d1_224"),
    *("convit_tiny", "tnt_s_patch16_224", "pit_ti_224", "coat_tiny", "efficientnetv2_rw_t"),
    *("tf_efficientnetv2_s", "gc_efficientnetv2_rw_t", "regnetx_002"),
    *("regnety_002", "densenet121", "vgg11", "vgg16_bn", "efficientvit_b0"),
    *("efficientvit_m0", "swiftformer_xs", "nextvit_small", "fastvit_t8", "inception_next_atto"),
    *("gmlp_ti16_224", "resmlp_12_224", "convmixer_768_32", "dm_nfnet_f0", "botnet26t_256"),
    *("swinv2_cr_tiny_224", "vitamin_small_224", "mobilenetv3_small_050", "visformer_tiny"),
    *("resnet10t", "darknet17"),
)
TORCHVISION = (
    *("maxvit_t", "efficientnet_v2_s", "regnet_y_400mf", "densenet121", "vgg11", "vgg16_bn"),
    *("video.mvit_v1_b", "video.mvit_v2_s", "mobilenet_v2"),
)
TRANSFORMERS = {
    "sam": "SamModel",
    "sam2": "Sam2Model",
    "detr headless": "DetrModel",
    "deformable_detr": "DeformableDetrForObjectDetection",
    "rt_detr": "RTDetrForObjectDetection",
    "mobilevit": "MobileViTForImageClassification",
    "mobilevitv2": "MobileViTV2ForImageClassification",
    "levit": "LevitForImageClassificationWithTeacher",
    "hiera": "HieraForImageClassification",
    "poolformer": "PoolFormerForImageClassification",
    "blip": "BlipForConditionalGeneration",
    "blip_2": "Blip2Model",
    "data2vec_vision": "Data2VecVisionForImageClassification",
    "focalnet": "FocalNetForImageClassification",
    "regnet": "RegNetForImageClassification",
    "efficientnet": "EfficientNetForImageClassification",
    "cvt": "CvtForImageClassification",
    "swiftformer": "SwiftFormerForImageClassification",
    "dpt": "DPTForSemanticSegmentation",
    "mask2former": "Mask2FormerForUniversalSegmentation",
    "eomt": "EomtForUniversalSegmentation",
    "vilt": "ViltModel",
}
_FEW = 32  # names
AUTHORS = {
    # yitu-opensource/T2T-ViT: models/t2t_vit.py.
    "t2t": (
        *("cls_token", "pos_embed", "tokens_to_token.attention1.kqv.weight"),
        *("tokens_to_token.project.weight", "blocks.0.norm1.weight", "blocks.0.attn.qkv.weight"),
        *("norm.weight", "head.weight"),
    ),
    # facebookresearch/segment-anything: segment_anything/modeling.
    "segment-anything": (
        *("image_encoder.pos_embed", "image_encoder.patch_embed.proj.weight"),
        *("image_encoder.blocks.0.attn.rel_pos_h", "image_encoder.neck.0.weight"),
        *("prompt_encoder.point_embeddings.0.weight", "mask_decoder.iou_token.weight"),
    ),
}


def main():
    found = {f"authors {name}": list(names) for name, names in AUTHORS.items()}
    timm = import_timm()
    for name in TIMM:
        with torch.device("meta"):
            found[f"timm {name}"] = few(timm.create_model(name).state_dict())
    import_torchvision()
    for name in TORCHVISION:
        found[f"torchvision {name}"] = few(torchvision_model(name).state_dict())
    for name, kind in TRANSFORMERS.items():
        found[f"transformers {name}"] = few(names_in_files(kind))
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(names)}" for name, names in found.items())
    Path(__file__).with_name("others.json").write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def torchvision_model(name: str) -> torch.nn.Module:
    from torchvision import models

    kind = getattr(models.video if name.startswith("video.") else models, name.split(".")[-1])
    if name.startswith("regnet"):  # computes its widths with tensors
        return kind()
    with torch.device("meta"):
        return kind()


def names_in_files(kind: str) -> list[str]:
    """Return the names that transformers' class writes; those in memory may be others."""
    import transformers
    from transformers.core_model_loading import revert_weight_conversion

    kind = getattr(transformers, kind)
    with torch.device("meta"):
        model = kind(kind.config_class())
    return list(revert_weight_conversion(model, model.state_dict()))


def few(names: Collection[str]) -> list[str]:
    """Return names that differ in more than numbers; all of a model with few layers."""
    left_out = ("running_mean", "running_var", "num_batches_tracked", ".bias")
    kept, statistic = {}, [name for name in names if name.endswith("running_var")][:1]
    names = [name for name in names if not name.endswith(left_out)]
    if len(names) <= _FEW:
        return names + statistic
    for name in names:
        kept.setdefault(re.sub(r"\d+", "#", name), name)
    return [*kept.values(), *statistic]


if __name__ == "__main__":
    main()
