"""`preprocessor_config.json`, with values as transformers writes them."""

import dataclasses

import numpy as np
import pytest

from tests.support.stored import stored
from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.weights.ecosystems import processors

PATCH = (16, 16)
_ON = {"do_normalize": True, "do_resize": True}
_HALF = {**_ON, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
_IMAGENET = {**_ON, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
VIT = {**_HALF, "resample": 2, "size": 224}  # as google/vit-base-patch16-224 has it, of 2021
DEIT = {**_IMAGENET, "resample": 3, "size": 256, "crop_size": 224, "do_center_crop": True}


def test_a_squeezed_image_is_seen_whole():
    assert processors.read(VIT, PATCH) == {
        "mean": (0.5, 0.5, 0.5),
        "std": (0.5, 0.5, 0.5),
        "interpolation": "bilinear",
        "crop": 1.0,
        "size": (224, 224),
        "resize": "squash",
    }
    newer = processors.read(stored("hf_vit").preprocessor, (4, 4))
    assert newer == {**processors.read(VIT, PATCH), "size": (16, 16)}


def test_a_central_crop_is_a_fraction_of_what_is_resized():
    expected = {
        "mean": (0.485, 0.456, 0.406),
        "std": (0.229, 0.224, 0.225),
        "interpolation": "bicubic",
        "crop": 0.875,
        "crop_rounding": "down",
        "size": (224, 224),
    }
    assert processors.read(DEIT, PATCH) == {**expected, "resize": "squash"}
    shortest = {"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}}
    assert processors.read({**DEIT, **shortest}, PATCH) == {**expected, "resize": "cover"}
    assert processors.read(stored("hf_dinov2").preprocessor, (4, 4))["size"] == (8, 8)


@pytest.mark.parametrize("crop_size", [224, 384, 518])
@pytest.mark.parametrize("more", range(0, 90, 7))
def test_the_fraction_gives_back_the_exact_number_of_pixels(crop_size, more):
    shortest = {"shortest_edge": crop_size + more}
    processor = {**DEIT, "size": shortest, "crop_size": crop_size}
    fields = processors.read(processor, (1, 1))
    written = processors.write(Preprocessing(channels=3, **fields))
    assert written["size"] == {"shortest_edge": crop_size + more}
    assert written["crop_size"] == {"height": crop_size, "width": crop_size}


def test_a_crop_that_is_switched_off_is_none():
    assert processors.read({**DEIT, "do_center_crop": False}, PATCH)["size"] == (256, 256)
    assert processors.read({**DEIT, "do_center_crop": False}, PATCH)["crop"] == 1.0


def test_a_size_that_patches_do_not_fill_is_left_to_the_model():
    assert "size" not in processors.read(DEIT, (14, 15))
    assert processors.read(DEIT, (14, 14))["size"] == (224, 224)


def test_an_empty_file_says_nothing():
    assert processors.read({}, PATCH) == {}


CONVNEXT = {  # as microsoft/resnet-50 has it
    **_IMAGENET,
    "crop_pct": 0.875,
    "feature_extractor_type": "ConvNextFeatureExtractor",
    "resample": 3,
    "size": 224,
}


def test_convnexts_processor_keeps_the_ratio_below_384_pixels():
    small = processors.read(CONVNEXT, (1, 1))
    assert (small["size"], small["crop"], small["resize"]) == ((224, 224), 0.875, "cover")
    assert small["crop_rounding"] == "down"
    large = processors.read({**CONVNEXT, "size": {"shortest_edge": 384}}, (1, 1))
    assert (large["size"], large["crop"], large["resize"]) == ((384, 384), 1.0, "squash")
    shared = processors.read({**CONVNEXT, "crop_pct": None}, (1, 1))
    assert shared["crop"] == 224 / 256  # the default of the class


@pytest.mark.parametrize("name", ["CLIPImageProcessor", "BitImageProcessorFast"])
def test_one_number_is_the_shorter_side_where_the_class_says_so(name):
    told = {**DEIT, "image_processor_type": name}
    assert processors.read(told, PATCH)["resize"] == "cover"
    squeezed = {**told, "image_processor_type": "ViTImageProcessor"}
    assert processors.read(squeezed, PATCH)["resize"] == "squash"


def test_the_models_type_says_the_class_where_the_file_does_not():
    fields = processors.read({"size": 384}, (1, 1), "convnext")
    assert (fields["resize"], fields["mean"]) == ("squash", (0.5, 0.5, 0.5))
    fields = processors.read({"do_rescale": True}, (1, 1), "dinov2")
    assert (fields["size"], fields["resize"]) == ((224, 224), "cover")
    assert fields["mean"] == (0.48145466, 0.4578275, 0.40821073)


@pytest.mark.parametrize(
    "wrong, sentence",
    [
        ({"crop_size": {"height": 224, "width": 192}}, "different aspect ratios"),
        ({"do_resize": False}, "without resizing"),
        ({"crop_size": 300}, "300.*larger than the resized"),
        ({"size": {"shortest_edge": 256, "longest_edge": 300}}, "limits the longer side"),
    ],
)
def test_what_our_preprocessing_has_not_is_refused(wrong, sentence):
    with pytest.raises(UserError, match=rf"^preprocessor_config\.json: .*{sentence}"):
        processors.read({**DEIT, **wrong}, PATCH)


def test_pixels_that_are_not_normalised_have_mean_0_and_std_1():
    fields = processors.read({"do_normalize": False}, PATCH)
    assert fields == {"mean": (0.0,), "std": (1.0,)}


def test_another_scale_of_pixels_goes_into_mean_and_std():
    """Pixels times 1/127.5, minus 1, over 1: from -1 to 1, as with mean and std of 0.5."""
    processor = {"rescale_factor": 1 / 127.5, "image_mean": [1.0], "image_std": [1.0]}
    fields = processors.read(processor, PATCH)
    assert fields == {"mean": (0.5,), "std": (0.5,)}
    raw = processors.read({"do_rescale": False, "image_mean": [127.5], "image_std": [51]}, PATCH)
    assert raw == {"mean": (0.5,), "std": (0.2,)}


@pytest.mark.parametrize(
    "wrong",
    [
        {"resample": 0},
        {"resample": "nearest"},
        {"resample": [3]},
        {"size": "224"},
        {"size": {"width": 224}},
        {"size": {"height": 224, "width": -1}},
        {"size": {"shortest_edge": 1.5}},
        {"do_center_crop": True, "crop_size": []},
        {"image_mean": "0.5"},
        {"image_std": []},
        {"image_std": [None]},
        {"rescale_factor": "1/255"},
        {"rescale_factor": 0},
    ],
)
def test_values_of_another_kind_are_refused_by_name(wrong):
    key = list(wrong)[-1]
    with pytest.raises(UserError, match=rf"^preprocessor_config\.json: {key} = "):
        processors.read({**VIT, **wrong}, PATCH)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
def test_what_is_written_reads_as_the_same(interpolation):
    ours = Preprocessing((224, 224), 3, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), 0.875, interpolation)
    ours = dataclasses.replace(ours, crop_rounding="down")
    written = processors.write(ours)
    assert Preprocessing(channels=3, **processors.read(written, PATCH)) == ours
    assert written["resample"] == {"bilinear": 2, "bicubic": 3, "lanczos": 1}[interpolation]


def test_a_fraction_becomes_the_pixels_that_it_makes():
    written = processors.write(Preprocessing((224, 224), crop=0.9))
    assert written["size"] == {"shortest_edge": 248}  # 224 / 0.9 = 248.9, rounded down


def test_one_mean_is_written_for_every_channel():
    written = processors.write(Preprocessing((32, 32), 3))
    assert written["image_mean"] == written["image_std"] == [0.5, 0.5, 0.5]
    grey = processors.write(Preprocessing((32, 32), 1))
    assert (grey["image_mean"], grey["do_convert_rgb"]) == ([0.5], False)


def test_an_oblong_size_is_written_with_both_sides():
    written = processors.write(Preprocessing((112, 224), 3, crop=0.875))
    assert written["size"] == {"height": 128, "width": 256}
    assert written["crop_size"] == {"height": 112, "width": 224}
    np.testing.assert_equal(processors.read(written, PATCH)["crop"], 0.875)
    assert processors.squeezes_instead(Preprocessing((112, 224)))
    assert not processors.squeezes_instead(Preprocessing((112, 224), resize="squash"))
    assert not processors.squeezes_instead(Preprocessing((224, 224)))


def test_a_squeezed_image_is_written_with_both_sides():
    half = (0.5,) * 3
    ours = Preprocessing((224, 224), 3, half, half, 0.875, resize="squash", crop_rounding="down")
    written = processors.write(ours)
    assert written["size"] == {"height": 256, "width": 256}
    assert Preprocessing(channels=3, **processors.read(written, PATCH)) == ours
