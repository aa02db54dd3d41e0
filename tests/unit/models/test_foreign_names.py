"""Names that timm, Hugging Face, torchvision, Google and Meta give to models lead to ours."""

import pytest

from vit_jax.models import create_model, list_models, model_fields
from vit_jax.models.autoformer.module import AutoFormer
from vit_jax.models.foreign_names import _FIELDS, own_field, own_name, stated_size
from vit_jax.models.registry import MODELS
from vit_jax.models.universal import UniversalViT

# As the libraries spell them: timm.list_models(), hub repositories, torchvision.models, file names.
NAMES = {
    "ViT-B/16": [
        *("vit_base_patch16_224", "vit_base_patch16_224.augreg_in21k", "vit_base_patch16_384"),
        *("google/vit-base-patch16-224", "google/vit-base-patch16-224-in21k", "vit_b_16"),
        *("ViT_B_16_Weights", "ViT-B_16", "vitb16", "vit-b-16", "ViT-B-16", "B/16", "B_16"),
        *("hf://timm/vit_base_patch16_224.augreg2_in21k_ft_in1k", "facebook/dino-vitb16"),
        *("dino_vitb16", "vit_base_patch16_clip_224.openai", "facebook/vit-mae-base"),
        "facebook/vit-msn-base",
        *("mae_vit_base_patch16", "openai/clip-vit-base-patch16", "vit_base_patch16_siglip_224"),
    ],
    "ViT-B/32": ["vit_b_32", "vit_base_patch32_224", "google/vit-base-patch32-384"],
    "ViT-S/16": ["vit_small_patch16_224.dino", "dino_vits16", "WinKawaks/vit-small-patch16-224"],
    "ViT-S/8": ["vit_small_patch8_224", "facebook/dino-vits8"],
    "ViT-Ti/16": ["vit_tiny_patch16_224", "vit-tiny-patch16-224", "vit_ti_16"],
    "ViT-L/16": ["vit_l_16", "google/vit-large-patch16-384", "vit_large_patch16_224.mae"],
    "ViT-L/14": ["vit_large_patch14_clip_224.laion2b"],
    "ViT-H/14": [
        "vit_h_14",
        "vit_huge_patch14_224.mae",
        "facebook/vit-mae-huge",
        "facebook/ijepa_vith14_1k",
    ],
    "ViT-g/14": ["vit_giant_patch14_224"],
    "ViT-G/14": ["vit_gigantic_patch14_224"],
    "DeiT-S/16": ["deit_small_patch16_224.fb_in1k", "facebook/deit-small-patch16-224"],
    "DeiT-Ti/16-distilled": [
        "deit_tiny_distilled_patch16_224",
        "facebook/deit-tiny-distilled-patch16-224",
    ],
    "DeiT3-B/16": ["deit3_base_patch16_224.fb_in22k_ft_in1k", "deit3_base_patch16_384"],
    "DeiT3-M/16": ["deit3_medium_patch16_224"],
    "DeiT3-H/14": ["deit3_huge_patch14_224"],
    "DINOv2-B/14": ["vit_base_patch14_dinov2.lvd142m", "facebook/dinov2-base", "dinov2_vitb14"],
    "DINOv2-g/14": ["facebook/dinov2-giant", "dinov2_vitg14"],
    "DINOv2-S/14-reg": [
        *("vit_small_patch14_reg4_dinov2.lvd142m", "facebook/dinov2-with-registers-small"),
        "dinov2_vits14_reg",
    ],
    "NaFlexViT-B/16": [
        "google/siglip2-base-patch16-naflex",
        "naflexvit_base_patch16_gap.e300_s576",
    ],
    "NaFlexViT-So400m/16": ["google/siglip2-so400m-patch16-naflex"],
    "FlexiViT-B": ["flexivit_base.1200ep_in1k", "flexivit_base", "flexivit_b_i1k"],
    "FlexiViT-S": ["timm/flexivit_small.300ep_in1k"],
    "ViT-5-S": ["vit5_small", "vit_5_s"],
    "ViT-5-XL": ["vit5_xl"],
    "PE-Core-B/16": ["vit_pe_core_base_patch16_224.fb", "facebook/PE-Core-B16-224"],
    "PE-Core-T/16": ["vit_pe_core_tiny_patch16_384"],
    "PE-Core-G/14": ["vit_pe_core_gigantic_patch14_448"],
    "AIMv2-L/14": ["aimv2_large_patch14_224.apple_pt", "apple/aimv2-large-patch14-448"],
    "AIMv2-1B/14": ["aimv2_1b_patch14_224"],
    "DINOv3-S/16": [
        *("vit_small_patch16_dinov3.lvd1689m", "vit_small_patch16_dinov3_qkvb", "dinov3_vits16"),
        *("facebook/dinov3-vits16-pretrain-lvd1689m", "vit_small_patch16_lingbot"),
    ],
    "DINOv3-S+/16": [
        *("vit_small_plus_patch16_dinov3.lvd1689m", "dinov3_vits16plus"),
        "facebook/dinov3-vits16plus-pretrain-lvd1689m",
    ],
    "DINOv3-B/16": ["vit_base_patch16_dinov3", "facebook/dinov3-vitb16-pretrain-lvd1689m"],
    "DINOv3-L+/16": ["dinov3_vitl16plus"],
    "DINOv3-H+/16": ["vit_huge_plus_patch16_dinov3_qkvb.lvd1689m", "dinov3_vith16plus"],
    "DINOv3-7B/16": [
        *("vit_7b_patch16_dinov3.sat493m", "dinov3_vit7b16"),
        "facebook/dinov3-vit7b16-pretrain-sat493m",
    ],
    "EVA02-B/14": ["eva02_base_patch14_224.mim_in22k", "eva02_base_patch14_448"],
    "EVA02-Ti/14": ["eva02_tiny_patch14_336.mim_in22k_ft_in1k"],
    "BEiT-B/16": [
        *("beit_base_patch16_224.in22k_ft_in22k_in1k", "beitv2_base_patch16_224"),
        *("microsoft/beit-base-patch16-224", "microsoft/beit-base-patch16-384"),
    ],
    "BEiT-L/16": ["beitv2_large_patch16_224.in1k_ft_in1k", "beit_large_patch16_512"],
    "R50+ViT-B/16": ["vit_base_r50_s16_384", "google/vit-hybrid-base-bit-384", "R50+ViT-B_16"],
    "R26+ViT-S/32": ["vit_small_r26_s32_224.augreg_in21k"],
    "R50+ViT-L/32": ["vit_large_r50_s32_384"],
    "R+ViT-Ti/16": ["vit_tiny_r_s16_p8_224"],
    "ViTC-4GF": ["vit_c_4gf"],
    "Swin-T": [
        *("swin_tiny_patch4_window7_224.ms_in1k", "microsoft/swin-tiny-patch4-window7-224"),
        *("swin_t", "Swin_T_Weights"),
    ],
    "Swin-L": ["swin_large_patch4_window12_384"],
    "SwinV2-T": [
        *("swinv2_tiny_window8_256.ms_in1k", "microsoft/swinv2-tiny-patch4-window8-256"),
        *("swin_v2_t", "Swin_V2_T_Weights", "swinv2_tiny_patch4_window16_256"),
    ],
    "SwinV2-L": ["swinv2_large_window12to24_192to384.ms_in22k_ft_in1k"],
    "TimeSformer-B/16": ["facebook/timesformer-base-finetuned-k400", "timesformer_base"],
    "TimeSformer-B/16-HR": ["facebook/timesformer-hr-finetuned-k600"],
    "V-JEPA2-L/16": ["facebook/vjepa2-vitl-fpc64-256", "vjepa2_vit_large"],
    "V-JEPA2-g/16": ["facebook/vjepa2-vitg-fpc64-256", "vjepa2_vit_giant"],
    "V-JEPA2-g/16-384": ["facebook/vjepa2-vitg-fpc64-384", "vjepa2_vit_giant_384"],
    "PVT-Tiny": ["pvt_tiny", "Zetatech/pvt-tiny-224", "pvt_v1_tiny"],
    "PVT-Medium": ["pvt_medium"],
    "PVTv2-B0": ["pvt_v2_b0", "OpenGVLab/pvt_v2_b0", "pvt_v2_b0.in1k"],
    "PVTv2-B2-linear": ["pvt_v2_b2_li.in1k", "OpenGVLab/pvt_v2_b2_linear"],
    "MiT-B0": ["mit_b0", "nvidia/mit-b0"],
    "SegFormer-B0": ["nvidia/segformer-b0-finetuned-ade-512-512"],
    "MiT-B5": ["mit_b5"],
    "SegFormer-B5": ["segformer_b5"],
    "CaiT-XXS/24": ["cait_xxs24_224.fb_dist_in1k", "cait_XXS24_224"],
    "CaiT-M/48": ["cait_m48_448"],
    "Mixer-B/16": ["mixer_b16_224.goog_in21k_ft_in1k", "Mixer-B_16", "mixer_b_16"],
    "Mixer-L/16": ["mixer_l16_224"],
    "ResNet-50": ["resnet50.a1_in1k", "resnet50", "microsoft/resnet-50", "ResNet50_Weights"],
    "ResNet-152": ["resnet152", "tv_resnet152"],
    "ResNet": ["resnet18", "resnet34.a1_in1k", "microsoft/resnet-18"],
    "ConvNeXt-T": ["convnext_tiny", "convnext_tiny.fb_in22k", "facebook/convnext-tiny-224"],
    "ConvNeXt-S": ["convnext_small.dinov3_lvd1689m", "dinov3_convnext_small"],
    "ConvNeXt-B": ["facebook/dinov3-convnext-base-pretrain-lvd1689m"],
    "ConvNeXt-L": ["facebook/convnext-large-384-22k-1k"],
    "ConvNeXtV2-Atto": ["convnextv2_atto.fcmae_ft_in1k", "facebook/convnextv2-atto-1k-224"],
    "ConvNeXtV2-T": ["convnextv2_tiny", "facebook/convnextv2-tiny-22k-384"],
    "ConvNeXtV2-H": ["convnextv2_huge.fcmae_ft_in22k_in1k_512"],
    "EfficientNet-B0": ["efficientnet_b0", "google/efficientnet-b0", "EfficientNetB0"],
    "YOLOS-Ti": ["hustvl/yolos-tiny"],
    "YOLOS-B": ["yolos_base"],
    "DETR-R50": ["facebook/detr-resnet-50", "detr_resnet50", "detr_r50"],
    "DPT-L/16": ["Intel/dpt-large", "dpt_large_384", "DPT_Large"],
    "DepthAnythingV2-S": [
        *("depth-anything/Depth-Anything-V2-Small-hf", "depth_anything_v2_vits"),
        "depth-anything/Depth-Anything-V2-Small",
    ],
    "DepthAnythingV2-B": ["depth_anything_v2_vitb"],
    "DPT-Hybrid": ["Intel/dpt-hybrid-midas", "dpt_hybrid_nyu"],
    "ViTDet-B/16": ["google/vitdet-base-patch16-224", "mask_rcnn_vitdet_b_100ep"],
    "EfficientNet-B7": ["tf_efficientnet_b7.ns_jft_in1k"],
}
ELSEWHERE = [
    *("swinv2_cr_tiny_ns_224", "swinv2_cr_large_384"),
    *("facebook/detr-resnet-50-dc5", "facebook/detr-resnet-101", "yolov8n"),
    *("convnextv2_small", "convnext_nano", "efficientnet_v2_s", "resnext50_32x4d"),
    *("wide_resnet50_2", "gmixer_24_224", "coatnet_0_rw_224", "", "bert-base-uncased"),
    *("eva02_base_patch16_clip_224", "eva_giant_patch14_224", "beit3_base_patch16_224"),
    *("vit_tiny_patch16_dinov3_qkvb", "vit_base_patch16_plus_240", "vit_relpos_base_patch16_224"),
]


@pytest.mark.parametrize("own", NAMES)
def test_a_name_of_another_library_leads_to_ours_alone(own):
    for name in NAMES[own]:
        assert own_name(name, MODELS) == own, name
        with pytest.raises(ValueError, match="there is no model") as caught:
            create_model(name)
        assert f"; did you mean {own!r}" in str(caught.value), name
        assert " or " not in str(caught.value), name


def test_every_family_that_is_here_has_names():
    families = {MODELS[own].architecture for own in NAMES}
    own = {UniversalViT, AutoFormer}  # no other library has one
    assert families == {preset.architecture for preset in MODELS.values()} - own


def test_a_family_that_is_not_here_is_not_taken_for_one_that_is():
    assert {name: own_name(name, MODELS) for name in ELSEWHERE} == dict.fromkeys(ELSEWHERE)


def test_the_size_that_a_name_states_is_said_where_it_is_another():
    assert stated_size("google/vit-base-patch16-384") == 384
    with pytest.raises(ValueError, match=r"did you mean 'ViT-B/16' with image_size=384\?"):
        create_model("vit_base_patch16_384.augreg_in1k")
    with pytest.raises(ValueError, match=r"did you mean 'ViT-B/16'\?"):
        create_model("vit_base_patch16_224")


@pytest.mark.parametrize("name", [None, 3, ["ViT-B/16"], "x" * 10**6, "\0"])
def test_what_is_no_name_is_one_short_sentence(name):
    with pytest.raises(ValueError, match="there is no model") as caught:
        create_model(name)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("word", "field"), [("img_size", "image_size"), ("embed_dim", "width"), ("num_heads", "heads")]
)
def test_fields_of_other_libraries_lead_to_ours(word, field):
    assert own_field(word, model_fields("ViT-B/16")) == field
    with pytest.raises(ValueError, match=f"no field '{word}'; did you mean '{field}'"):
        create_model("ViT-B/16", **{word: 3})


def test_all_fields_that_are_suggested_exist():
    assert set(_FIELDS) <= {field for name in list_models() for field in model_fields(name)}
