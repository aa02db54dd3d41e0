"""Golden files of pyramids, read whole: every stage and the logits are the library's."""

import pytest

from tests.support.stages import TOLERANCE, assert_agrees, largest_error
from tests.support.stored import loaded, stored

CASES = (
    *("resnet_timm", "resnet_basic", "resnet_hf"),
    *("convnext_timm", "convnext_original", "convnext_torchvision", "convnext_hf"),
    *("convnext_v2_timm", "convnext_v2_pointwise", "convnext_v2_original", "convnext_v2_hf"),
    "convnext_dinov3",
    *("efficientnet_timm", "efficientnet_google", "efficientnet_torchvision"),
    *("pvt_hf", "pvt_original"),
)


@pytest.mark.parametrize("name", CASES)
def test_every_stage_and_the_logits_are_the_librarys(name):
    record, variables = loaded(name)
    assert_agrees(record.create_model(), variables, stored(name).answers)


@pytest.mark.parametrize(
    ("name", "wrong", "factor"),
    [
        ("resnet_timm", {"norm_eps": 1e-3}, 10),
        ("convnext_timm", {"norm_eps": 1e-5}, 4),
        ("efficientnet_timm", {"norm_eps": 1e-3}, 10),
        ("efficientnet_timm", {"padding": "same"}, 10),
        ("pvt_hf", {"norm_eps": 1e-6}, 2),
        ("pvt_original", {"embed_norm_eps": 1e-6}, 2),
    ],
)
def test_a_fact_of_another_origin_is_noticed(name, wrong, factor):
    record, variables = loaded(name)
    model = record.create_model().clone(**wrong)
    assert largest_error(model, variables, stored(name).answers) > factor * TOLERANCE
