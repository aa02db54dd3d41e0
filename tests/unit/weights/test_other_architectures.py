"""Files of architectures that are not read are called by their names, whoever wrote them."""

import json
import re

import numpy as np
import pytest

from tests.support.stored import GOLDEN, stored
from vit_jax.errors import UserError
from vit_jax.weights.recognition import find_model

# Names of tensors by library and model; see `make_others.py` beside the file.
OTHERS = json.loads((GOLDEN / "others.json").read_text(encoding="utf-8"))

# What a sentence calls them, to the end of a word, and the models of `OTHERS`.
CALLED = {
    "SAM": "authors segment-anything, transformers sam, transformers sam2",
    "SAM's ViT": "timm samvit_base_patch16",
    "SAM 2's Hiera": "timm sam2_hiera_tiny",
    "Hiera": "timm hiera_tiny_224, transformers hiera",
    "DETR without its heads, or one of its successors": "transformers detr headless, "
    "transformers deformable_detr, transformers rt_detr",
    "MaskFormer or Mask2Former": "transformers mask2former",
    "EoMT": "transformers eomt",
    "a DPT of another kind": "transformers dpt",
    "BLIP": "transformers blip, transformers blip_2",
    "ViLT": "transformers vilt",
    "data2vec": "transformers data2vec_vision",
    "XCiT": "timm xcit_nano_12_p8_224",
    "CrossViT": "timm crossvit_9_240",
    "ConViT": "timm convit_tiny",
    "T2T-ViT": "authors t2t",
    "TNT": "timm tnt_s_patch16_224",
    "VOLO": "timm volo_d1_224",
    "NesT": "timm nest_tiny",
    "PiT": "timm pit_ti_224",
    "CoaT": "timm coat_tiny",
    "MViT": "timm mvitv2_tiny, torchvision video.mvit_v1_b, torchvision video.mvit_v2_s",
    "Twins": "timm twins_pcpvt_small, timm twins_svt_small",
    "DaViT": "timm davit_tiny",
    "FocalNet": "timm focalnet_tiny_srf, transformers focalnet",
    "GCViT": "timm gcvit_xxtiny",
    "CvT": "transformers cvt",
    "timm's own Swin V2": "timm swinv2_cr_tiny_224",
    "MaxViT": "timm maxvit_nano_rw_256, timm maxxvit_rmlp_nano_rw_256, torchvision maxvit_t",
    "CoAtNet": "timm coatnet_nano_cc_224, timm coatnet_rmlp_1_rw_224",
    "MobileViT": "timm mobilevit_xxs, timm mobilevitv2_050, transformers mobilevit, "
    "transformers mobilevitv2",
    "LeViT": "timm levit_128s, transformers levit",
    "TinyViT": "timm tiny_vit_5m_224",
    "EfficientFormer": "timm efficientformer_l1, timm efficientformerv2_s0",
    "EfficientViT": "timm efficientvit_b0, timm efficientvit_m0",
    "SwiftFormer": "timm swiftformer_xs, transformers swiftformer",
    "Next-ViT": "timm nextvit_small",
    "FastViT": "timm fastvit_t8",
    "a network of timm with attention in the stages of a ResNet": "timm botnet26t_256",
    "a hybrid of ViT and another network": "timm vitamin_small_224",
    "EdgeNeXt": "timm edgenext_xx_small",
    "InceptionNeXt": "timm inception_next_atto",
    "PoolFormer": "timm poolformer_s12, timm poolformerv2_s12, timm caformer_s18, "
    "transformers poolformer",
    "gMLP": "timm gmlp_ti16_224",
    "ResMLP": "timm resmlp_12_224",
    "ConvMixer": "timm convmixer_768_32",
    "EfficientNetV2": "timm efficientnetv2_rw_t, timm tf_efficientnetv2_s, "
    "timm gc_efficientnetv2_rw_t, torchvision efficientnet_v2_s",
    "EfficientNet of transformers": "transformers efficientnet",
    "RegNet": "timm regnetx_002, timm regnety_002, torchvision regnet_y_400mf, transformers regnet",
    "DenseNet": "timm densenet121, torchvision densenet121",
    "VGG": "timm vgg11, timm vgg16_bn, torchvision vgg11, torchvision vgg16_bn",
    "NFNet": "timm dm_nfnet_f0",
}
MODELS = {model: called for called, models in CALLED.items() for model in models.split(", ")}
# Of these only the kind is told.
KINDS = {
    "timm mobilenetv3_small_050": "a relative of EfficientNet, such as a MobileNet",
    "timm resnet10t": "a relative of ResNet",
    "timm visformer_tiny": "a transformer",
    "timm darknet17": "a convolutional network with BatchNorm",
    "torchvision mobilenet_v2": "a convolutional network with BatchNorm",
}


def tensors_of(model):
    one = np.ones((1,), np.float32)
    return dict.fromkeys(OTHERS[model], one)


def test_every_model_of_the_file_is_in_a_table():
    assert {*MODELS, *KINDS} == set(OTHERS)


@pytest.mark.parametrize("model", MODELS)
def test_an_architecture_that_is_not_read_is_called_by_its_name(model):
    with pytest.raises(UserError) as caught:
        find_model(tensors_of(model))
    called = re.escape(MODELS[model])
    assert re.match(rf"the file looks like {called}(?![\w'])", str(caught.value)), caught.value
    assert "; supported are ViT" in str(caught.value)


@pytest.mark.parametrize("model", KINDS)
def test_names_of_no_known_architecture_tell_its_kind(model):
    with pytest.raises(UserError, match=f"of no supported library.*look like {KINDS[model]}, and"):
        find_model(tensors_of(model))


@pytest.mark.parametrize(
    ("model", "part"),
    [("transformers dpt", "dpt")],
)
def test_a_part_that_is_read_is_told(model, part):
    with pytest.raises(UserError, match=f"only the tensors under '{part}', use --part={part}; sup"):
        find_model(tensors_of(model))


def test_a_part_that_is_not_read_either_is_not_told():
    for model in ("authors segment-anything", "transformers rt_detr"):
        with pytest.raises(UserError) as caught:
            find_model(tensors_of(model))
        assert "--part" not in str(caught.value)


def test_patches_of_videos_are_told_by_their_axes():
    """VideoMAE's tensors are called as those of a ViT."""
    tensors = dict(stored("hf_vit").tensors)
    [patches] = [name for name in tensors if name.endswith("projection.weight")]
    tensors[patches] = tensors[patches][:, :, None]
    with pytest.raises(UserError, match="looks like a model of videos"):
        find_model(tensors)
