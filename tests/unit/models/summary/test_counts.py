"""Costs of the registered models: the numbers of papers and of other libraries, none from here.

That rows of the kept table are what tracing gives is tested for the smallest of each family.
"""

import pytest

from tests.support.shapes import count_parameters
from vit_jax.models import create_model, list_models
from vit_jax.models.registry import MODELS, get_preset, register
from vit_jax.models.summary.counts import counts, table, traced

# At 224 pixels with 1000 classes: tokens, parameters, and parameters with a representation layer as
# wide as the model, with mean pooling and no class token, and without head; MACs.
VIT_COUNTS = {
    "ViT-Ti/14": (257, 5_694_376, 5_731_432, 5_693_992, 5_501_376, 1_697_710_080),
    "ViT-Ti/16": (197, 5_717_416, 5_754_472, 5_717_032, 5_524_416, 1_253_683_200),
    "ViT-Ti/32": (50, 6_131_560, 6_168_616, 6_131_176, 5_938_560, 306_034_176),
    "ViT-S/14": (257, 22_004_584, 22_152_424, 22_003_816, 21_619_584, 6_123_945_984),
    "ViT-S/16": (197, 22_050_664, 22_198_504, 22_049_896, 21_665_664, 4_598_882_304),
    "ViT-S/32": (50, 22_878_952, 23_026_792, 22_878_184, 22_493_952, 1_142_909_952),
    "ViT-B/14": (257, 86_475_496, 87_066_088, 86_473_960, 85_706_496, 23_161_995_264),
    "ViT-B/16": (197, 86_567_656, 87_158_248, 86_566_120, 85_798_656, 17_563_828_224),
    "ViT-B/32": (50, 88_224_232, 88_814_824, 88_222_696, 87_455_232, 4_409_186_304),
    "ViT-L/14": (257, 304_203_752, 305_253_352, 304_201_704, 303_178_752, 81_013_006_336),
    "ViT-L/16": (197, 304_326_632, 305_376_232, 304_324_584, 303_301_632, 61_554_712_576),
    "ViT-L/32": (50, 306_535_400, 307_585_000, 306_533_352, 305_510_400, 15_377_539_072),
    "ViT-H/14": (257, 632_045_800, 633_685_480, 632_043_240, 630_764_800, 167_295_109_120),
    "ViT-H/16": (197, 632_199_400, 633_839_080, 632_196_840, 630_918_400, 127_314_872_320),
    "ViT-H/32": (50, 634_960_360, 636_600_040, 634_957_800, 633_679_360, 31_856_035_840),
}
SMALL_COUNTS = {  # tokens, parameters, MACs; 10 classes
    "CIFAR-ViT-S/4": (65, 5_362_762, 365_107_584),
    "CIFAR-ViT-B/4": (65, 21_342_346, 1_420_309_248),
    "CIFAR-ViT-L/4": (65, 75_722_250, 5_012_747_264),
    "CIFAR-ViT-512/8": (17, 19_028_490, 324_217_856),
    "Minimal-ViT-128/8": (17, 821_642, 14_059_776),
}
# Tokens and parameters of the models of other repositories, as timm 1.0.31 counts them, but for the
# row of the position table that timm adds to the class token where DINOv2 has registers. The MACs
# are those of `closed_form`.
PUBLISHED_COUNTS = {
    "DeiT-Ti/16": (197, 5_717_416),
    "DeiT-Ti/16-distilled": (198, 5_910_800),
    "DeiT-S/16": (197, 22_050_664),
    "DeiT-S/16-distilled": (198, 22_436_432),
    "DeiT-B/16": (197, 86_567_656),
    "DeiT-B/16-distilled": (198, 87_338_192),
    "DeiT3-S/16": (197, 22_059_496),
    "DeiT3-M/16": (197, 38_849_512),
    "DeiT3-B/16": (197, 86_585_320),
    "DeiT3-L/16": (197, 304_374_760),
    "DeiT3-H/14": (257, 632_126_440),
    "DINOv2-S/14": (1370, 22_056_192),
    "DINOv2-B/14": (1370, 86_579_712),
    "DINOv2-L/14": (1370, 304_367_616),
    "DINOv2-g/14": (1370, 1_136_479_232),
    "DINOv2-S/14-reg": (1374, 22_057_344 + 384),
    "DINOv2-B/14-reg": (1374, 86_582_016 + 768),
    "DINOv2-L/14-reg": (1374, 304_370_688 + 1024),
    "DINOv2-g/14-reg": (1374, 1_136_483_840 + 1536),
}
BY_FORMULA = ("ViT", "ViT-S/8", "ViT-B/8", "ViT-g/14", "ViT-G/14", "Digits-ViT-64/4")
BY_FORMULA = (*BY_FORMULA, "ViT-So400m/14", "ViT-So400m/16")

# Parameters and multiply-accumulates of other families, at 1000 classes.
OF_FAMILIES = {
    # timm, and by closed form
    "Swin-T": (28_288_354, 4_490_566_656),
    "Swin-S": (49_606_258, 8_740_875_264),
    "Swin-B": (87_768_224, 15_430_946_816),
    "Swin-L": (196_532_476, 34_475_759_616),
    # timm; the multiply-accumulates of T, S and B are torchvision's, in units of 10 ** 7
    "SwinV2-T": (28_347_154, 5_939_690_496),
    "SwinV2-S": (49_728_418, 11_545_857_024),
    "SwinV2-B": (87_918_816, 20_325_134_336),
    "SwinV2-L": (196_739_932, None),
    # the authors' code
    "PVT-Tiny": (13_229_288, 1_932_911_616),
    "PVT-Small": (24_485_864, 3_815_701_504),
    # Without the class token, its row of positions and its way through the last stage.
    "PVT-Small-mean": (24_484_840, 3_805_960_192),
    "PVT-Medium": (44_208_104, 6_659_175_424),
    "PVT-Large": (61_369_320, 9_813_765_632),
    # timm's parameters, and torch's FlopCounter halved
    "CaiT-XXS/24": (11_956_264, 2_523_475_200),
    "CaiT-XXS/36": (17_299_720, 3_755_697_408),
    "CaiT-XS/24": (26_670_088, 19_240_642_944),
    "CaiT-S/24": (46_916_200, 9_327_327_744),
    "CaiT-S/36": (68_366_632, 47_907_955_200),
    "CaiT-M/36": (271_221_352, 172_943_655_936),
    "CaiT-M/48": (356_460_520, 329_107_670_016),
    # timm's parameters, and torch's FlopCounter halved
    "PVTv2-B0": (3_666_760, 566_065_664),
    "PVTv2-B1": (14_009_000, 2_108_355_584),
    "PVTv2-B2": (25_362_856, 4_026_734_592),
    "PVTv2-B3": (45_238_696, 6_897_303_552),
    "PVTv2-B4": (62_556_072, 10_101_116_416),
    "PVTv2-B5": (81_956_008, 11_717_260_288),
    "PVTv2-B2-linear": (22_553_512, 3_888_850_944),
    # transformers' `VitDetModel`, and by closed form the pyramid that it has not
    "ViTDet-B/16": (85_889_024 + 5_560_000, None),
    "ViTDet-L/16": (303_432_704 + 7_805_184, None),
    "ViTDet-H/16": (631_116_800 + 10_640_192, None),
    # the authors' code, which counts a parameter of every tensor of the sampled subnet
    "AutoFormer-T": (5_867_944, None),
    "AutoFormer-S": (22_891_432, None),
    "AutoFormer-B": (53_691_688, None),
    "AutoFormer": (80_160_360, None),
    # transformers' `SegformerForImageClassification`, and torch's FlopCounter halved
    "MiT-B0": (3_576_392, 452_467_200),
    "MiT-B1": (13_664_424, 1_675_637_760),
    "MiT-B2": (24_709_288, 3_271_284_736),
    "MiT-B3": (44_585_128, 6_141_853_696),
    "MiT-B4": (61_355_688, 8_920_174_080),
    "MiT-B5": (81_956_008, 11_717_260_288),
    # the authors' code, without the classifier that its encoder keeps
    "Segmenter-Ti/16": (6_713_388, None),
    "Segmenter-Ti/16-linear": (5_712_342, None),
    "Segmenter-S/16": (26_033_964, None),
    "Segmenter-S/16-linear": (22_041_366, None),
    "Segmenter-B/16": (102_497_580, None),
    "Segmenter-B/16-linear": (86_549_910, None),
    "Segmenter-L/16": (333_234_476, None),
    "Segmenter-L/16-linear": (304_893_078, None),
    # transformers' `SegformerForSemanticSegmentation`
    "SegFormer-B0": (3_752_694, None),
    "SegFormer-B1": (13_715_798, None),
    "SegFormer-B2": (27_461_974, None),
    "SegFormer-B3": (47_337_814, None),
    "SegFormer-B4": (64_108_374, None),
    "SegFormer-B5": (84_708_694, None),
    # transformers' `UperNetForSemanticSegmentation`, without the norm that Swin does not use
    "UPerNet-Swin-T": (59_943_398 - 2 * 768, None),
    "UPerNet-Swin-S": (81_261_302 - 2 * 768, None),
    "UPerNet-Swin-B": (121_281_764 - 2 * 1024, None),
    "UPerNet-ConvNeXt-T": (60_242_636, None),
    # transformers' `DPTForDepthEstimation` with `is_hybrid`
    "DPT-Hybrid": (122_377_985, None),
    # the closed form of table 1 in Tolstikhin et al. 2021, as in `test_mixer`
    "Mixer-S/32": (19_104_624, 1_002_426_368),
    "Mixer-S/16": (18_528_264, 3_776_958_464),
    "Mixer-B/32": (60_293_428, 3_237_722_112),
    "Mixer-B/16": (59_880_472, 12_601_767_936),
    "Mixer-L/32": (206_939_264, 11_253_293_056),
    "Mixer-L/16": (208_196_168, 44_547_678_208),
    "Mixer-H/14": (432_350_952, 120_989_911_040),
    # the authors' parameters, and torch's FlopCounter halved
    "ConvNeXt-T": (28_589_128, 4_455_531_264),
    "ConvNeXt-S": (50_223_688, 8_683_712_256),
    "ConvNeXt-B": (88_591_464, 15_354_729_472),
    "ConvNeXt-L": (197_767_336, 34_361_433_600),
    # timm's parameters, and torch's FlopCounter halved
    "ConvNeXtV2-Atto": (3_708_400, 547_332_480),
    "ConvNeXtV2-Femto": (5_233_240, 779_629_824),
    "ConvNeXtV2-Pico": (9_066_280, 1_367_055_360),
    "ConvNeXtV2-Nano": (15_623_800, 2_445_528_320),
    "ConvNeXtV2-T": (28_635_496, 4_455_531_264),
    "ConvNeXtV2-B": (88_717_800, 15_354_729_472),
    "ConvNeXtV2-L": (197_956_840, 34_361_433_600),
    "ConvNeXtV2-H": (660_289_640, 114_922_100_480),
    # torchvision's parameters, and torch's FlopCounter halved
    "ResNet-50": (25_557_032, 4_089_184_256),
    "ResNet-101": (44_549_160, 7_801_405_440),
    "ResNet-152": (60_192_808, 11_513_626_624),
    # timm's `efficientnet_b0` to `b7`; MACs of two of them
    "EfficientNet-B0": (5_288_548, 385_814_752),
    "EfficientNet-B1": (7_794_184, None),
    "EfficientNet-B2": (9_109_994, None),
    "EfficientNet-B3": (12_233_232, None),
    "EfficientNet-B4": (19_341_616, None),
    "EfficientNet-B5": (30_389_784, None),
    "EfficientNet-B6": (43_040_704, None),
    "EfficientNet-B7": (66_347_960, 37_745_884_192),
    # transformers' `TimesformerForVideoClassification`, and torch's FlopCounter halved
    "TimeSformer-B/16": (121_566_352, 195_830_280_192),
    "TimeSformer-B/16-HR": (122_024_080, 1_702_685_650_944),
    "TimeSformer-B/16-L": (121_633_936, 2_379_856_982_016),
    # the encoder of transformers' `VJEPA2Model` on the meta device, and torch's FlopCounter halved
    "V-JEPA2-L/16": (303_885_312, 5_785_320_947_712),
    "V-JEPA2-H/16": (631_648_000, 10_667_625_021_440),
    "V-JEPA2-g/16": (1_012_173_952, 15_844_671_225_856),
    "V-JEPA2-g/16-384": (1_012_173_952, 56_910_598_373_376),
    # transformers' `Siglip2VisionModel` with a classifier of 1000 classes
    "NaFlexViT-B/16": (92_930_304 + 769 * 1000, None),
    "NaFlexViT-So400m/16": (427_888_064 + 1153 * 1000, None),
    # timm's `flexivit_*` with the kernels and tables of the published files, see `test_flexivit`
    "FlexiViT-S": (22_493_568 + 385 * 1000, None),
    "FlexiViT-B": (87_454_464 + 769 * 1000, None),
    "FlexiViT-L": (305_509_376 + 1025 * 1000, None),
    # transformers 5.24 and timm 1.0.31 on the meta device
    "AIMv2-L/14": (309_197_824, None),
    "AIMv2-H/14": (680_851_968, None),
    "AIMv2-1B/14": (1_234_958_336, None),
    "AIMv2-3B/14": (2_720_658_432, None),
    # timm 1.0.31, but for L+: L with the wider first layer of its gated MLPs
    "DINOv3-S/16": (21_596_160, None),
    "DINOv3-S+/16": (28_692_480, None),
    "DINOv3-B/16": (85_659_648, None),
    "DINOv3-L/16": (303_128_576, None),
    "DINOv3-L+/16": (303_128_576 + 24 * 1025 * 4096, None),
    "DINOv3-H+/16": (840_591_360, None),
    "DINOv3-7B/16": (6_716_030_976, None),
    "EVA02-Ti/14": (5_502_144 + 193 * 1000, None),
    "EVA02-S/14": (21_621_120 + 385 * 1000, None),
    "EVA02-B/14": (85_758_720 + 769 * 1000, None),
    "EVA02-L/14": (303_268_800 + 1025 * 1000, None),
    "BEiT-B/16": (86_530_984, None),
    "BEiT-L/16": (304_430_568, None),
    # transformers 5.24 on the meta device, whose encoder of DINOv2 has a mask token too
    "DPT-B/16": (110_878_081, None),
    "DPT-L/16": (343_030_465, None),
    "DepthAnythingV2-S": (24_785_089 - 384, None),
    "DepthAnythingV2-B": (97_470_785 - 768, None),
    "DepthAnythingV2-L": (335_315_649 - 1024, None),
    "DepthAnythingV2-g": (1_258_132_225 - 1536, None),
    # the authors' code
    "ViT-5-S": (22_039_144, None),
    "ViT-5-B": (86_543_080, None),
    "ViT-5-L": (304_258_024, None),
    "ViT-5-XL": (448_505_128, None),
    # timm's `vit_pe_core_*` on the meta device
    "PE-Core-T/16": (6_042_240, None),
    "PE-Core-S/16": (23_586_048, None),
    "PE-Core-B/16": (92_886_528, None),
    "PE-Core-L/14": (316_102_656, None),
    "PE-Core-G/14": (1_880_066_560, None),
    # transformers 5.24 on the meta device, with the 91 classes of COCO; of DETR without the scales
    # and biases of its frozen norms, which it does not count
    "YOLOS-Ti": (6_488_736, None),
    "YOLOS-S": (30_684_768, None),
    "YOLOS-B": (127_798_368, None),
    "DETR-R50": (41_524_768 + 106_240 // 2, None),
    # Google's own modules; R50+ViT-B/16 agrees with timm's `vit_base_r50_s16_224`, MACs included
    "R+ViT-Ti/16": (6_337_704, None),
    "R26+ViT-S/32": (36_431_912, None),
    "R26+ViT-B/32": (101_383_976, None),
    "R50+ViT-B/16": (98_659_112, 21_535_358_976),
    "R50+ViT-L/32": (328_994_856, None),
}


def closed_form(model):
    """Tokens, parameters and MACs written down as formulas of the sizes (square, learned table)."""
    patches = (model.image_size // model.patch_size) ** 2
    tokens, prefix = patches + model.prefix, model.prefix
    rows = patches + (1 + model.distilled if model.has_class_token and model.pos_on_cls else 0)
    heads, matrices = 1 + model.distilled, 3 if model.mlp == "swiglu" else 2
    pixels = model.patch_size**2 * model.in_channels
    width, depth, classes = model.width, model.depth, model.num_classes
    mlp = model.mlp_width or int(width * model.mlp_ratio)
    attention = 4 * width**2 + 4 * width
    hidden_layers = matrices * width * mlp + (matrices - 1) * mlp + width
    block = attention + hidden_layers + 4 * width + (2 * width if model.layer_scale else 0)
    embedding = pixels * width + width + width * prefix + rows * width
    parameters = embedding + depth * block + 2 * width + heads * (width + 1) * classes
    per_block = 4 * tokens * width**2 + 2 * tokens**2 * width + matrices * tokens * width * mlp
    macs = patches * pixels * width + depth * per_block + heads * width * classes
    return tokens, parameters, macs


# ---------------------------------------------------------------------------- published numbers


def test_every_registered_name_is_in_a_table():
    tables = {*VIT_COUNTS, *SMALL_COUNTS, *PUBLISHED_COUNTS, *BY_FORMULA, *OF_FAMILIES}
    architectures = {get_preset(name).architecture.__name__ for name in list_models()}
    assert tables <= set(list_models())
    # An architecture's own name is one of its sizes; those of ViTC are in `test_conv_stem`.
    rest = set(list_models()) - tables - architectures
    assert rest == set(list_models("ViTC-*"))


@pytest.mark.parametrize("name", VIT_COUNTS)
def test_vit_costs_exactly_what_the_table_says(name):
    tokens, parameters, *_, macs = VIT_COUNTS[name]
    assert counts(name) == (tokens, parameters, macs) == closed_form(create_model(name))


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("ViT-S/32", "ViT-B/16") else pytest.param(name, marks=pytest.mark.slow)
        for name in VIT_COUNTS
    ],
)
def test_vit_variants_have_exactly_the_parameters_of_the_table(name):
    _, _, with_representation, mean_pool, headless, _ = VIT_COUNTS[name]
    width = create_model(name).width
    assert count_parameters(create_model(name, representation_size=width)) == with_representation
    assert count_parameters(create_model(name, pool="mean")) == mean_pool
    assert count_parameters(create_model(name, num_classes=0)) == headless


@pytest.mark.parametrize("name", SMALL_COUNTS)
def test_small_vit_costs_exactly_what_the_table_says(name):
    assert counts(name) == SMALL_COUNTS[name] == closed_form(create_model(name))


@pytest.mark.parametrize("name", BY_FORMULA)
def test_cost_is_the_closed_form(name):
    assert counts(name) == closed_form(create_model(name))


@pytest.mark.parametrize("name", PUBLISHED_COUNTS)
def test_published_model_costs_what_its_repository_and_the_closed_form_say(name):
    tokens, parameters = PUBLISHED_COUNTS[name]
    assert counts(name) == closed_form(create_model(name))
    assert counts(name)[:2] == (tokens, parameters)


@pytest.mark.parametrize("name", OF_FAMILIES)
def test_a_model_of_another_family_costs_what_its_source_says(name):
    parameters, macs = OF_FAMILIES[name]
    assert counts(name).parameters == parameters
    assert macs in (None, counts(name).macs)


# ---------------------------------------------------------------------------- the kept table


def smallest_of_each_family():
    by_family = {}
    kept = [name for name in list_models() if name in table()]
    for name in sorted(kept, key=lambda name: table()[name].macs):
        by_family.setdefault(get_preset(name).architecture.__name__, name)
    return list(by_family.values())


def test_the_table_has_exactly_the_registered_models_in_their_order():
    assert list(table()) == list_models()


@pytest.mark.parametrize("name", smallest_of_each_family())
def test_a_row_is_what_tracing_the_model_gives(name):
    assert counts(name) == traced(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", list_models())
def test_every_row_is_what_tracing_the_model_gives(name):
    assert counts(name) == traced(name)


def test_a_model_that_is_not_in_the_table_is_traced():
    preset = get_preset("Digits-ViT-64/4")
    register("Mine", preset.architecture, "here", **preset.fields)
    try:
        assert counts("Mine") == counts("Digits-ViT-64/4")
    finally:
        del MODELS["Mine"]


def test_an_unknown_name_is_told():
    with pytest.raises(ValueError, match="ViT-B/16"):
        counts("ViT-B/15")
