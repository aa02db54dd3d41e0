"""Published checkpoints, with the accuracies that their authors report.

    get_published("DeiT-S/16-distilled.in1k").where

Each family is a table; a `Row` has the differences. `source` is the reference of an accuracy; for
files without a fine-tuned head there is none. Numbers of parameters are those of the model here,
including the head, as counted by the tests.
"""

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vit_jax.errors import UserError, nearest
from vit_jax.models.registry import model_fields
from vit_jax.weights.formats import Hints


@dataclass(frozen=True)
class Published:
    """Published checkpoint.

    name: name in this table, `MODEL.KIND`.
    where: an address for `hub.fetch`.
    origin: origin of the weights, such as "deit": a name among the origins of the formats.
    model, fields: the model in it, as `create_model(model, **fields)`.
    parameters: number of parameters of that model.
    top1: reported accuracy on ImageNet-1k's validation images in percent; None: not reported.
    measured: type of the accuracy, such as "fine-tuned" or "linear probe".
    source: reference of the accuracy.
    """

    name: str
    where: str
    origin: str
    model: str
    parameters: int
    source: str
    top1: float | None = None
    measured: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def image_size(self) -> int:
        """Height and width of the images, in pixels."""
        return {**model_fields(self.model), **self.fields}["image_size"]

    @property
    def hints(self) -> Hints:
        """Hints for the facts that the file does not contain itself."""
        heads = model_fields(self.model)["heads"]
        only = heads if isinstance(heads, int) else None  # of a pyramid the tables have them
        return Hints(self.origin, only, (self.image_size, self.image_size))


PUBLISHED: dict[str, Published] = {}

# Of a family's table: model, KIND of the name, file, accuracy, number of parameters, fields.
Row = tuple[str, str, str, float | None, int, dict[str, Any]]


def list_published(pattern: str = "*") -> list[str]:
    """Return the names that match a shell pattern such as `"ViT-B/*"`, family by family."""
    return [name for name in PUBLISHED if fnmatch.fnmatchcase(name.lower(), pattern.lower())]


def get_published(name: str) -> Published:
    """Return the record of a name. Raises UserError with the nearest names if there is none."""
    if name not in PUBLISHED:
        raise UserError(
            f"there is no published checkpoint {name!r}{nearest(name, PUBLISHED)}; all names: "
            "python -m vit_jax models --pretrained"
        )
    return PUBLISHED[name]


def _add(where: str, origin: str, rows: Iterable[Row], **shared: Any) -> None:
    """Add the checkpoints of a family.

    Args:
        where: address, with `{}` in place of a row's file.
        rows: what differs; see `Row`.
        shared: attributes of `Published` that all have.
    """
    for model, kind, file, top1, parameters, fields in rows:
        name = f"{model}.{kind}"
        assert name not in PUBLISHED, name
        PUBLISHED[name] = Published(
            name, where.format(file), origin, model, parameters, top1=top1, fields=fields, **shared
        )


_GOOGLE = "https://storage.googleapis.com/vit_models"
_BIG_VISION = "https://storage.googleapis.com/big_vision"
_META = "https://dl.fbaipublicfiles.com"
_TORCHVISION = "https://download.pytorch.org/models"

_TIMM_RESULTS = "timm's results/results-imagenet.csv, measured with its copy of the weights"
_IN_21K = 21_843  # outputs of Google's heads for ImageNet-21k
_AT_384 = {"image_size": 384}

# ------------------------------------------------------------ Google: the 2020 paper, AugReg, SAM

_PAPER = "An Image is Worth 16x16 Words (Dosovitskiy et al. 2021)"
_add(
    f"{_GOOGLE}/imagenet21k/{{}}.npz",
    "google",
    [
        (model, "in21k", file, None, parameters, {"num_classes": _IN_21K, **fields})
        for model, file, parameters, fields in (
            ("ViT-B/16", "ViT-B_16", 103_186_515, {"representation_size": 768}),
            ("ViT-B/32", "ViT-B_32", 104_843_091, {"representation_size": 768}),
            ("ViT-L/16", "ViT-L_16", 326_740_307, {"representation_size": 1024}),
            ("ViT-L/32", "ViT-L_32", 328_949_075, {"representation_size": 1024}),
            ("ViT-H/14", "ViT-H_14", 660_385_363, {"representation_size": 1280}),
        )
    ],
    source=f"{_PAPER}; the head is all zeros",
)

_README = "README of google-research/vision_transformer"
_IN_1K = f"{_GOOGLE}/imagenet21k+imagenet2012/{{}}.npz"
_add(
    _IN_1K,
    "google",
    [
        ("ViT-B/16", "in21k-in1k", "ViT-B_16-224", 81.2, 86_567_656, {}),
        ("ViT-L/16", "in21k-in1k", "ViT-L_16-224", 82.7, 304_326_632, {}),
    ],
    measured="fine-tuned",
    source=_README,
)
_add(
    _IN_1K,
    "google",
    [
        ("ViT-B/16", "in21k-in1k-384", "ViT-B_16", 84.200, 86_859_496, _AT_384),
        ("ViT-L/32", "in21k-in1k-384", "ViT-L_32", 81.510, 306_632_680, _AT_384),
    ],
    measured="fine-tuned",
    source=_TIMM_RESULTS,
)

# The recommended files of "How to train your ViT?" (Steiner et al. 2022), table 3, by the README:
# model, pre-trained model, learning rate of fine-tuning, accuracy, parameters of both.
for _name, _file, _config, _rate, _top1, _before, _after in (
    ("Ti/16", "Ti_16", "aug_none-wd_0.03", "0.03", 78.22, 9_740_115, 5_790_376),
    ("S/32", "S_32", "aug_none-wd_0.1", "0.01", 79.58, 30_903_507, 22_915_432),
    ("S/16", "S_16", "aug_light1-wd_0.03", "0.03", 83.73, 30_075_219, 22_196_584),
    ("B/32", "B_32", "aug_light1-wd_0.1", "0.01", 83.59, 104_252_499, 88_297_192),
    ("B/16", "B_16", "aug_medium1-wd_0.1", "0.03", 85.49, 102_595_923, 86_859_496),
    ("L/16", "L_16", "aug_strong1-wd_0.1", "0.01", 85.59, 325_690_707, 304_715_752),
):
    _where = f"{_GOOGLE}/augreg/{_file}-i21k-300ep-lr_0.001-{_config}-do_0.0-sd_0.0{{}}.npz"
    _row = (f"ViT-{_name}", "augreg-in21k", "", None, _before, {"num_classes": _IN_21K})
    _add(_where, "google", [_row], source=_README)
    _tuned = f"--imagenet2012-steps_20k-lr_{_rate}-res_384"
    _row = (f"ViT-{_name}", "augreg-in21k-in1k-384", _tuned, _top1, _after, _AT_384)
    _add(_where, "google", [_row], source=_README, measured="fine-tuned")

# AugReg at 224 pixels, copied by timm.
_add(
    "hf://timm/vit_{}_224.augreg_in21k_ft_in1k",
    "timm",
    [
        ("ViT-Ti/16", "augreg-in21k-in1k", "tiny_patch16", 75.454, 5_717_416, {}),
        ("ViT-S/32", "augreg-in21k-in1k", "small_patch32", 75.994, 22_878_952, {}),
        ("ViT-S/16", "augreg-in21k-in1k", "small_patch16", 81.384, 22_050_664, {}),
        ("ViT-B/32", "augreg-in21k-in1k", "base_patch32", 80.716, 88_224_232, {}),
        ("ViT-B/16", "augreg-in21k-in1k", "base_patch16", 84.532, 86_567_656, {}),
        ("ViT-B/8", "augreg-in21k-in1k", "base_patch8", 85.798, 86_576_872, {}),
        ("ViT-L/16", "augreg-in21k-in1k", "large_patch16", 85.834, 304_326_632, {}),
    ],
    measured="fine-tuned",
    source=_TIMM_RESULTS,
)

_add(
    f"{_GOOGLE}/sam/{{}}.npz",
    "google",
    [
        ("ViT-B/16", "sam-in1k", "ViT-B_16", 80.244, 86_567_656, {}),
        ("ViT-B/32", "sam-in1k", "ViT-B_32", 73.694, 88_224_232, {}),
    ],
    measured="from scratch",
    source=_TIMM_RESULTS,
)

# ------------------------------------------------------------------ big_vision, FlexiViT, SigLIP

_BASELINE = {"pool": "mean", "positions": "sincos2d_big_vision", "representation_size": 384}
_add(
    f"{_BIG_VISION}/vit_s16_i1k_{{}}.npz",
    "big_vision",
    [
        ("ViT-S/16", f"plain-in1k-{epochs}", epochs, top1, 22_122_472, _BASELINE)
        for epochs, top1 in (("90ep", 76.5), ("150ep", 78.5), ("300ep", 80.0))
    ],
    measured="from scratch",
    source="Better plain ViT baselines for ImageNet-1k (Beyer et al. 2022)",
)

_add(
    f"{_BIG_VISION}/flexivit/flexivit_{{}}.npz",
    "flexivit",
    [
        ("FlexiViT-S", "in1k", "s_i1k", None, 22_878_568, {}),
        ("FlexiViT-B", "in1k", "b_i1k", None, 88_223_464, {}),
        ("FlexiViT-L", "in1k", "l_i1k", None, 306_534_376, {}),
        ("FlexiViT-B", "in21k", "b_i21k_1000ep", None, 104_251_731, {"num_classes": _IN_21K}),
    ],
    source="FlexiViT: One Model for All Patch Sizes (Beyer et al. 2023), by its README",
)

_SIGLIP = "Sigmoid Loss for Language Image Pre-Training (Zhai et al. 2023)"
_TOWER = {"num_classes": 0, "pool": "map"}
_add(
    f"{_BIG_VISION}/siglip/{{}}.npz",
    "siglip",
    [
        (model, f"siglip-{size}", file, None, parameters, {**_TOWER, "image_size": size})
        for model, size, file, parameters in (
            ("ViT-B/16", 224, "webli_en_b16_224_63724782", 92_884_224),
            ("ViT-B/16", 256, "webli_en_b16_256_60500360", 92_930_304),
            ("ViT-B/16", 384, "webli_en_b16_384_68578854", 93_176_064),
            ("ViT-B/16", 512, "webli_en_b16_512_68580893", 93_520_128),
            ("ViT-L/16", 256, "webli_en_l16_256_60552751", 315_956_224),
            ("ViT-L/16", 384, "webli_en_l16_384_63634585", 316_283_904),
        )
    ],
    source=f"{_SIGLIP}; the image tower, without the text tower's zero-shot classification",
)

# -------------------------------------------------------------------------------- DeiT, DeiT III

_ENDINGS = {224: "", 384: "-384"}  # of the type, by the image size
_add(
    f"{_META}/deit/deit_{{}}.pth",
    "deit",
    [
        (f"DeiT-{name}", f"in1k{_ENDINGS[size]}", file, top1, parameters, {"image_size": size})
        for name, size, file, top1, parameters in (
            ("Ti/16", 224, "tiny_patch16_224-a1311bcf", 72.2, 5_717_416),
            ("S/16", 224, "small_patch16_224-cd65a155", 79.9, 22_050_664),
            ("B/16", 224, "base_patch16_224-b5f2ef4d", 81.8, 86_567_656),
            ("B/16", 384, "base_patch16_384-8de9b5d1", 82.9, 86_859_496),
            ("Ti/16-distilled", 224, "tiny_distilled_patch16_224-b40b3cf7", 74.5, 5_910_800),
            ("S/16-distilled", 224, "small_distilled_patch16_224-649709d9", 81.2, 22_436_432),
            ("B/16-distilled", 224, "base_distilled_patch16_224-df68dfff", 83.4, 87_338_192),
            ("B/16-distilled", 384, "base_distilled_patch16_384-d0272ac0", 85.2, 87_630_032),
        )
    ],
    measured="from scratch",
    source="README_deit.md of facebookresearch/deit (Touvron et al. 2021)",
)

# Two accuracies: pre-trained on ImageNet-1k, and on ImageNet-21k before it.
for _model, _file, _size, _top1, _top1_of_21k, _parameters in (
    ("DeiT3-S/16", "small_224", 224, 81.4, 83.1, 22_059_496),
    ("DeiT3-S/16", "small_384", 384, 83.4, 84.8, 22_205_416),
    ("DeiT3-B/16", "base_224", 224, 83.8, 85.7, 86_585_320),
    ("DeiT3-B/16", "base_384", 384, 85.0, 86.7, 86_877_160),
    ("DeiT3-L/16", "large_224", 224, 84.9, 87.0, 304_374_760),
    ("DeiT3-L/16", "large_384", 384, 85.8, 87.7, 304_763_880),
    ("DeiT3-H/14", "huge_224", 224, 85.2, 87.2, 632_126_440),
):
    _version = "_v1" if _file == "huge_224" else ""
    for _kind, _of, _reported, _measured in (
        ("in1k", "1k", _top1, "from scratch"),
        ("in21k-in1k", f"21k{_version}", _top1_of_21k, "fine-tuned"),
    ):
        _kind += _ENDINGS[_size]
        _row = (_model, _kind, f"{_file}_{_of}", _reported, _parameters, {"image_size": _size})
        _add(
            f"{_META}/deit/deit_3_{{}}.pth",
            "deit3",
            [_row],
            measured=_measured,
            source="README_revenge.md of facebookresearch/deit (Touvron et al. 2022)",
        )

# ------------------------------------------------------------------------------ MAE, DINO, DINOv2

_MAE = "FINETUNE.md of facebookresearch/mae (He et al. 2022)"
_TUNED = {"pool": "mean", "class_token": True, "pool_norm": "after"}
for _model, _file, _probe, _finetuned, _encoder, _classifier in (
    ("ViT-B/16", "base", 67.8, 83.664, 85_798_656, 86_567_656),
    ("ViT-L/16", "large", 76.0, 85.952, 303_301_632, 304_326_632),
    ("ViT-H/14", "huge", 77.2, 86.928, 630_764_800, 632_045_800),
):
    _row = (_model, "mae", f"pretrain/mae_pretrain_vit_{_file}", _probe, _encoder)
    _add(
        f"{_META}/mae/{{}}.pth",
        "mae",
        [(*_row, {"num_classes": 0})],
        measured="linear probe",
        source=_MAE,
    )
    _row = (_model, "mae-in1k", f"finetune/mae_finetuned_vit_{_file}", _finetuned, _classifier)
    _add(f"{_META}/mae/{{}}.pth", "mae", [(*_row, _TUNED)], measured="fine-tuned", source=_MAE)

_add(
    f"{_META}/dino/dino_{{0}}_pretrain/dino_{{0}}_pretrain.pth",
    "dino",
    [
        ("ViT-S/16", "dino", "deitsmall16", 77.0, 21_665_664, {"num_classes": 0}),
        ("ViT-S/8", "dino", "deitsmall8", 79.7, 21_670_272, {"num_classes": 0}),
        ("ViT-B/16", "dino", "vitbase16", 78.2, 85_798_656, {"num_classes": 0}),
        ("ViT-B/8", "dino", "vitbase8", 80.1, 85_807_872, {"num_classes": 0}),
    ],
    measured="linear probe",
    source="README of facebookresearch/dino (Caron et al. 2021)",
)

# Two accuracies: without registers, and with four.
for _letter, _top1, _top1_with_registers, _parameters, _width in (
    ("S", 81.1, 80.9, 22_056_192, 384),
    ("B", 84.5, 84.6, 86_579_712, 768),
    ("L", 86.3, 86.7, 304_367_616, 1024),
    ("g", 86.5, 87.1, 1_136_479_232, 1536),
):
    _file = f"dinov2_vit{_letter.lower()}14"
    _model = f"DINOv2-{_letter}/14"
    _add(
        f"{_META}/dinov2/{_file}/{{}}_pretrain.pth",
        "dinov2",
        [
            (_model, "lvd142m", _file, _top1, _parameters, {}),
            (
                f"{_model}-reg",
                "lvd142m",
                f"{_file}_reg4",
                _top1_with_registers,
                _parameters + 4 * _width,
                {},
            ),
        ],
        measured="linear probe",
        source="README of facebookresearch/dinov2 (Oquab et al. 2023; Darcet et al. 2024)",
    )

# ------------------------------------------------------------------------------------ torchvision

_add(
    f"{_TORCHVISION}/{{}}.pth",
    "torchvision",
    [
        ("ViT-B/16", "torchvision-in1k", "vit_b_16-c867db91", 81.072, 86_567_656, {}),
        ("ViT-B/32", "torchvision-in1k", "vit_b_32-d86f8d99", 75.912, 88_224_232, {}),
        ("ViT-L/32", "torchvision-in1k", "vit_l_32-c7638314", 76.972, 306_535_400, {}),
    ],
    measured="from scratch",
    source="torchvision's models/vision_transformer.py, IMAGENET1K_V1",
)

_add(
    f"{_TORCHVISION}/{{}}.pth",
    "torchvision",
    [
        ("Swin-T", "torchvision-in1k", "swin_t-704ceda3", 81.474, 28_288_354, {}),
        ("Swin-S", "torchvision-in1k", "swin_s-5e29d889", 83.196, 49_606_258, {}),
        ("Swin-B", "torchvision-in1k", "swin_b-68c6b09e", 83.582, 87_768_224, {}),
    ],
    measured="from scratch",
    source="torchvision's models/swin_transformer.py, IMAGENET1K_V1",
)
_add(
    f"{_TORCHVISION}/{{}}.pth",
    "torchvision",
    [
        ("SwinV2-T", "torchvision-in1k", "swin_v2_t-b137f0e2", 82.072, 28_347_154, {}),
        ("SwinV2-S", "torchvision-in1k", "swin_v2_s-637d8ceb", 83.712, 49_728_418, {}),
        ("SwinV2-B", "torchvision-in1k", "swin_v2_b-781e5279", 84.112, 87_918_816, {}),
    ],
    measured="from scratch",
    source="torchvision's models/swin_transformer.py, IMAGENET1K_V1",
)
