"""What is done to images before they reach weights of another library, by that library's tables.

`make_preprocessing.py` and `make_crops.py` of `tests/goldens/weights` have asked the libraries.
"""

import json
import math

import numpy as np
import pytest

from tests.goldens.weights.make_crops import image
from tests.support.stored import GOLDEN, stored
from vit_jax.data import Preprocessing
from vit_jax.data.images.preprocess import crop_of
from vit_jax.errors import UserError
from vit_jax.models.convnext.weights import original as convnext_original
from vit_jax.models.convnext.weights import torchvision as convnext_torchvision
from vit_jax.models.efficientnet import weights as efficientnet
from vit_jax.models.registry import model_fields
from vit_jax.models.resnet import weights as resnet
from vit_jax.models.swin.weights import timm as swin
from vit_jax.models.swin.weights import torchvision as swin_torchvision
from vit_jax.models.vit.weights import torchvision
from vit_jax.weights.ecosystems import convolutions, meta, processors, timm_writing
from vit_jax.weights.formats import Hints

TABLES = json.loads((GOLDEN / "preprocessing.json").read_text(encoding="utf-8"))
with np.load(GOLDEN / "crops.npz") as _file:
    CROPS = {name: _file[name] for name in _file}


# ------------------------------------------------------------------------------- to the last pixel


@pytest.mark.parametrize("pipeline", sorted({json.loads(name)[0] for name in CROPS}))
def test_pixels_are_those_of_the_librarys_own_pipeline(pipeline):
    """Landscape and portrait, odd and even, enlarged and shrunk."""
    tried = 0
    for name, expected in CROPS.items():
        library, size, keywords = json.loads(name)
        if library != pipeline:
            continue
        keywords = dict(keywords)
        if (resized := keywords.pop("resized", None)) is not None:
            keywords["crop"] = crop_of(tuple(keywords["size"]), (resized, resized))
        found = Preprocessing(**keywords)(image(*size))
        np.testing.assert_array_equal(found, expected, err_msg=name)
        tried += 1
    assert tried >= 8


# ------------------------------------------------------------------------------------- torchvision

ORIGINS = {
    "IMAGENET1K_V1": "torchvision",
    "IMAGENET1K_V2": "torchvision-v2",
    "IMAGENET1K_SWAG_E2E_V1": "swag",
    "IMAGENET1K_SWAG_LINEAR_V1": "swag",
}


@pytest.mark.parametrize("name", TABLES["torchvision"])
def test_torchvisions_transforms(name):
    model, weights = name.split(".")
    expected = TABLES["torchvision"][name]
    origin = ORIGINS[weights]
    if model.startswith("efficientnet"):
        tensors = efficientnet_tensors(f"EfficientNet-B{model[-1]}")
        description = efficientnet.torchvision_describe(tensors, None, Hints(origin))
    elif model.startswith("convnext"):
        tensors = convnext_tensors({"tiny": "T", "small": "S"}.get(model[9:], model[9].upper()))
        description = convnext_torchvision.describe(tensors, None, Hints(origin))
    elif model.startswith("swin"):
        tensors = swin_tensors(f"Swin-{model[-1].upper()}")
        description = swin_torchvision.describe(tensors, None, Hints(origin), version=1)
    elif model.startswith("resnet"):
        description = resnet.describe(resnet_tensors(int(model[6:])), None, Hints(origin))
    else:
        size = expected["crop_size"]
        description = torchvision.describe(vit_tensors(model, size), None, Hints(origin, 16))
    assert_is(description, expected["crop_size"], expected["resize_size"], expected)


def assert_is(description, size, resized, expected):
    said = {"size": (description.fields["image_size"],) * 2, **description.preprocessing}
    preprocessing = Preprocessing(**said)
    assert preprocessing.size == (size, size)
    assert math.floor(size / preprocessing.crop) == resized
    assert preprocessing.interpolation == expected["interpolation"]
    assert list(preprocessing.mean) == expected["mean"]
    assert list(preprocessing.std) == expected["std"]
    assert (preprocessing.resize, preprocessing.crop_rounding) == ("cover", "nearest")


def test_which_weights_of_b1_it_is_is_asked_for():
    with pytest.raises(UserError, match="--origin=torchvision or --origin=torchvision-v2"):
        efficientnet.torchvision_describe(efficientnet_tensors("EfficientNet-B1"), None, Hints())
    with pytest.raises(UserError, match="does not fit"):
        tensors = efficientnet_tensors("EfficientNet-B3")
        efficientnet.torchvision_describe(tensors, None, Hints("torchvision-v2"))


def empty(**shapes):
    """Tensors that take no memory; `__` stands for a dot in a name."""
    return {
        name.replace("__", "."): np.broadcast_to(np.float32(0), shape)
        for name, shape in shapes.items()
    }


def efficientnet_tensors(name):
    """What describes a model of torchvision: names of all blocks, shapes of the first of each."""
    fields = model_fields(name)
    shapes = {
        "features.0.0.weight": (fields["stem_width"], 3, 3, 3),
        "features.8.0.weight": (fields["head_width"], fields["widths"][-1], 1, 1),
    }
    inputs = fields["stem_width"]
    for stage, depth in enumerate(fields["depths"]):
        hidden, kernel = inputs * fields["expansions"][stage], fields["kernels"][stage]
        first, number = f"features.{stage + 1}.0.block", min(stage, 1)
        for block in range(depth):
            shapes[f"features.{stage + 1}.{block}.block.0.0.weight"] = (hidden, inputs, 1, 1)
        shapes[f"{first}.{number}.0.weight"] = (hidden, 1, kernel, kernel)
        shapes[f"{first}.{number + 2}.0.weight"] = (fields["widths"][stage], hidden, 1, 1)
        inputs = fields["widths"][stage]
    return empty(**shapes)


def convnext_tensors(size):
    fields = model_fields(f"ConvNeXt-{size}")
    shapes = {"features.0.0.weight": (fields["widths"][0], 3, 4, 4)}
    for stage, (depth, width) in enumerate(zip(fields["depths"], fields["widths"], strict=True)):
        for block in range(depth):
            shapes[f"stages.{stage}.{block}.block.0.weight"] = (width, 1, 7, 7)
    width = fields["widths"][0]
    shapes["stages.0.0.block.3.weight"] = (4 * width, width)
    return empty(**shapes)


def swin_tensors(name):
    fields = model_fields(name)
    width = fields["width"]
    shapes = {
        "features.0.0.weight": (width, 3, 4, 4),
        "stages.0.0.mlp.0.weight": (4 * width, width),
    }
    for stage, (depth, heads) in enumerate(zip(fields["depths"], fields["heads"], strict=True)):
        table = "attn.relative_position_bias_table"
        shapes[f"stages.{stage}.0.{table}"] = (13 * 13, heads)
        for block in range(depth):
            shapes[f"stages.{stage}.{block}.norm1.weight"] = (width * 2**stage,)
    return empty(**shapes)


DEPTHS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
DEPTHS[152] = (3, 8, 36, 3)


def resnet_tensors(depth):
    bottleneck = depth >= 50
    shapes = {"conv1.weight": (64, 3, 7, 7)}
    for stage, blocks in enumerate(DEPTHS[depth]):
        width = 64 * 2**stage
        for block in range(blocks):
            layer = f"layer{stage + 1}.{block}"
            shapes[f"{layer}.conv1.weight"] = (width, width, 1, 1)
            shapes[f"{layer}.conv2.weight"] = (width, width, 3, 3)
            if bottleneck:
                shapes[f"{layer}.conv3.weight"] = (4 * width, width, 1, 1)
    return empty(**shapes)


def vit_tensors(model, size):
    _, kind, patch = model.split("_")
    width, depth = {"b": (768, 12), "l": (1024, 24), "h": (1280, 32)}[kind]
    patch = int(patch)
    layer = "encoder.layers.encoder_layer_"
    return empty(
        **{
            "conv_proj.weight": (width, 3, patch, patch),
            "encoder.pos_embedding": (1, 1 + (size // patch) ** 2, width),
            f"{layer}0.mlp.0.weight": (4 * width, width),
            **{f"{layer}{i}.ln_1.weight": (width,) for i in range(depth)},
        }
    )


# ------------------------------------------------------------------------------------- the authors


def test_convnexts_authors_squeeze_large_images():
    """Their datasets.py: "warping (no cropping) when evaluated at 384 or larger"."""
    tensors = stored("convnext_original").tensors
    small = convnext_original.describe(tensors, None, Hints()).preprocessing
    assert (small["crop"], small.get("resize", "cover")) == (0.875, "cover")
    large = convnext_original.describe(tensors, None, Hints(image_size=(384, 384))).preprocessing
    assert (large["crop"], large["resize"]) == (1.0, "squash")


def test_swins_authors_squeeze_images_of_384_pixels():
    """Their configs/swin/*_384*.yaml: TEST.CROP is False."""
    tensors = swin.normalize_timm(stored("swin_original").tensors)
    described = swin.describe_timm(tensors, None, Hints("swin", image_size=(384, 384)))
    assert (described.preprocessing["crop"], described.preprocessing["resize"]) == (1.0, "squash")


def test_maes_authors_crop_up_to_224_pixels_only():
    """Their util/datasets.py: crop_pct is 224 / 256 up to 224 pixels, and 1 above."""
    assert meta.preprocessing_of("mae", (224, 224))["crop"] == 0.875
    assert meta.preprocessing_of("mae", (448, 448))["crop"] == 1.0
    assert meta.preprocessing_of("deit", (384, 384))["crop"] == 0.875


# ------------------------------------------------------------------------------ timm, transformers


@pytest.mark.parametrize("told", TABLES["timm"], ids=lambda told: told["name"])
def test_timms_configurations(told):
    fields = convolutions.timm_preprocessing({"pretrained_cfg": told["pretrained_cfg"]})
    expected = told["resolved"]
    assert list(fields["mean"]) == list(expected["mean"])
    assert list(fields["std"]) == list(expected["std"])
    assert fields["crop"] == expected["crop_pct"]
    assert fields["interpolation"] == expected["interpolation"]
    assert fields["resize"] == {"center": "cover", "squash": "squash"}[expected["crop_mode"]]


def test_what_timms_configuration_leaves_out_is_timms_default():
    told = convolutions.timm_preprocessing({"pretrained_cfg": {"crop_pct": 0.9}})
    assert told == {
        "mean": (0.485, 0.456, 0.406),
        "std": (0.229, 0.224, 0.225),
        "crop": 0.9,
        "interpolation": "bicubic",
        "resize": "cover",
    }
    assert convolutions.timm_preprocessing({"pretrained_cfg": {"tag": "a1_in1k"}}) == {}
    grey = {"input_size": [1, 28, 28], "crop_pct": 1.0}
    assert "mean" not in convolutions.timm_preprocessing({"pretrained_cfg": grey})


def test_padding_comes_back_from_timm():
    ours = Preprocessing((32, 32), mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), resize="pad")
    fields = {"in_channels": 3, "num_classes": 2}
    cfg = timm_writing.pretrained_cfg(fields, ours, ("a", "b"), first="f", classifier="c")
    assert (
        Preprocessing((32, 32), **convolutions.timm_preprocessing({"pretrained_cfg": cfg})) == ours
    )


@pytest.mark.parametrize("wrong", [{"crop_mode": "border", "crop_pct": 0.9}, {"crop_mode": "top"}])
def test_other_crop_modes_of_timm_are_refused(wrong):
    with pytest.raises(UserError, match="^config.json: crop_mode = "):
        convolutions.timm_preprocessing({"pretrained_cfg": wrong})


def test_timms_own_efficientnets_are_for_fewer_pixels():
    by_name = {told["name"]: told["resolved"] for told in TABLES["timm"]}
    for name, size in efficientnet.TIMM_SIZES.items():
        published = f"efficientnet_b{name[-1]}.ra{'' if name[-1] == '2' else '2'}_in1k"
        if published in by_name:  # that of B1 is as B0's
            assert by_name[published]["input_size"] == [3, size, size]
            assert by_name[published]["crop_pct"] == 0.875


def test_the_authors_efficientnets_see_as_much_of_the_image_as_timm_shows_them():
    crops = {
        f"EfficientNet-B{told['name'].split('.')[0][-1]}": told["resolved"]["crop_pct"]
        for told in TABLES["timm"]
        if told["name"].startswith("tf_efficientnet_b") and told["name"].endswith(".aa_in1k")
    }
    for name, crop in crops.items():
        assert efficientnet.GOOGLE_CROPS.get(name, 0.875) == crop, name


@pytest.mark.parametrize("name", TABLES["transformers"])
def test_defaults_of_processors(name):
    """An empty but for its class: what the class would do."""
    expected = TABLES["transformers"][name]
    fields = processors.read({"image_processor_type": name}, (1, 1))
    assert list(fields["mean"]) == expected["image_mean"]
    assert list(fields["std"]) == expected["image_std"]
    assert {"bilinear": 2, "bicubic": 3}[fields["interpolation"]] == expected["resample"]
    size = expected["size"].get("height") or expected["size"]["shortest_edge"]
    cut = expected["crop_size"]["height"] if expected["do_center_crop"] else size
    assert fields["size"] == (cut, cut)
    assert math.floor(cut / fields["crop"]) == size
    squeezed = "height" in expected["size"] or size >= 384
    assert fields["resize"] == ("squash" if squeezed else "cover")
    number = processors.read({"image_processor_type": name, "size": 300, "crop_size": 200}, (1, 1))
    assert number["resize"] == ("squash" if expected["default_to_square"] else "cover")


NAMED = [kind for kind, processor in TABLES["model_types"].items() if processor]


@pytest.mark.parametrize("model_type", NAMED)
def test_the_processor_of_a_model(model_type):
    named = TABLES["model_types"][model_type]
    assert len(NAMED) >= 8
    assert f"{processors.OF_MODELS[model_type]}ImageProcessor" == named
