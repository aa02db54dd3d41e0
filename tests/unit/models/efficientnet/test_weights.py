"""EfficientNets of timm, of the authors and of torchvision: their fields, and there and back.

That every stage has the library's numbers is in `tests/unit/weights/test_pyramids.py`.
"""

import numpy as np
import pytest

from tests.support.stored import loaded, stored
from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.efficientnet import weights
from vit_jax.models.registry import model_fields
from vit_jax.weights.convert import write_pretrained
from vit_jax.weights.formats import Hints
from vit_jax.weights.mapping import joined, write_tensors
from vit_jax.weights.recognition import recognise

CASES = ("efficientnet_timm", "efficientnet_google", "efficientnet_torchvision")
TIMM = stored("efficientnet_timm")


@pytest.mark.parametrize("name", CASES)
def test_shapes_and_origin_say_the_fields(name):
    google = name == "efficientnet_google"
    assert loaded(name)[0].fields == {
        "num_classes": 5,
        "image_size": 224,
        "in_channels": 3,
        "depths": (2, 1, 1, 1, 1, 1, 1),
        "widths": (8, 8, 8, 8, 8, 8, 16),
        "kernels": (3, 3, 5, 3, 5, 5, 3),
        "strides": (1, 2, 2, 2, 1, 2, 1),
        "expansions": (1, 6, 2, 2, 2, 2, 2),
        "stem_width": 8,
        "stem_stride": 2,
        "head_width": 24,
        "squeeze": 0.25,
        "padding": "same" if google else "torch",
        "norm_eps": 1e-3 if google else 1e-5,
    }
    assert recognise(stored(name).tensors).architecture == "EfficientNet"


def test_padding_is_asked_for_where_nothing_says_it():
    with pytest.raises(UserError, match="--origin=timm or --origin=google"):
        weights.timm_describe(TIMM.tensors, None, Hints())


@pytest.mark.parametrize(
    ("architecture", "origin", "padding"),
    [("efficientnet_b0", "timm", "torch"), ("tf_efficientnet_b5", "google", "same")],
)
def test_an_architectures_name_says_it(architecture, origin, padding):
    config = {"architecture": architecture, "pretrained_cfg": {"input_size": [3, 456, 456]}}
    description = weights.timm_describe(TIMM.tensors, config, Hints())
    assert (description.origin, description.fields["padding"]) == (origin, padding)
    assert description.fields["image_size"] == 456


@pytest.mark.parametrize("name", ["efficientnet_lite0", "efficientnet_b0_g8_gn", "fbnetc_100"])
def test_a_variant_with_the_same_names_is_refused(name):
    with pytest.raises(UserError, match="may differ"):
        weights.timm_describe(TIMM.tensors, {"architecture": name}, Hints())


def test_another_number_of_stages_is_refused():
    tensors = {k: x for k, x in TIMM.tensors.items() if not k.startswith("blocks.6.")}
    with pytest.raises(UserError, match="has 7 stages of blocks, and the file has 6"):
        weights.timm_describe(tensors, None, Hints("timm"))


@pytest.mark.parametrize("name", CASES)
def test_there_and_back_the_tensors_are_equal_bit_for_bit(name):
    _, variables = loaded(name)
    rows = weights.TORCHVISION_ROWS if name.endswith("torchvision") else weights.TIMM_ROWS
    written = write_tensors(rows, joined(variables))
    expected = {k: x for k, x in stored(name).tensors.items() if "num_batches" not in k}
    assert written.keys() == expected.keys()
    assert all(written[key].tobytes() == expected[key].tobytes() for key in expected)


def test_only_published_sizes_are_written_for_timm(tmp_path):
    with pytest.raises(UserError, match="supports only EfficientNet-B0 to -B7"):
        write_pretrained(tmp_path, "timm", *loaded("efficientnet_timm"))


@pytest.mark.parametrize(
    ("name", "fields", "architecture"),
    [
        ("EfficientNet-B3", {}, "efficientnet_b3"),
        ("EfficientNet-B0", {"padding": "same", "norm_eps": 1e-3}, "tf_efficientnet_b0"),
    ],
)
def test_published_sizes_are_written_by_their_name(name, fields, architecture):
    known = {**model_fields(name), **fields, "num_classes": 2}
    config = weights.timm_config(known, Preprocessing((300, 300)), ("a", "b"))
    assert config["architecture"] == architecture
    assert config["pretrained_cfg"]["input_size"] == [3, 300, 300]


def test_the_largest_of_torchvision_have_the_epsilon_of_the_authors():
    """Its efficientnet_b5 to b7 are built with BatchNorm2d(eps=0.001, momentum=0.01)."""
    case = stored("efficientnet_torchvision")
    wide = {**case.tensors, "features.8.0.weight": np.zeros((2048, 16, 1, 1), np.float32)}
    assert weights.torchvision_describe(wide, None, Hints()).fields["norm_eps"] == 1e-3
