"""Rows, tensors and fields of a backbone in the files of models with a head on it."""

import numpy as np
import pytest

from vit_jax.models.registry import model_fields
from vit_jax.weights.backbones import (
    backbone_of,
    fields_of_backbone,
    under,
    without_head,
    without_prefix,
)
from vit_jax.weights.mapping import SAME, Row

ROWS = (
    Row("norm/scale", "norm.weight", SAME),
    Row("batch_stats/norm/mean", "norm.running_mean", SAME),
    Row("attn/kernel", ("q.weight", "k.weight"), SAME),
    Row("head/bias", "fc.bias", SAME),
    Row("head_dist/bias", "dist.bias", SAME),
    Row("heads/bias", "other.bias", SAME),
)


def test_rows_have_the_prefixes_of_both_sides():
    table = under(ROWS, "encoder.")
    names = {
        "backbone/norm/scale": ["encoder.norm.weight"],
        "batch_stats/backbone/norm/mean": ["encoder.norm.running_mean"],
        "backbone/attn/kernel": ["encoder.q.weight", "encoder.k.weight"],
    }
    for row, (path, expected) in zip(table, names.items(), strict=False):
        assert row.names(path) == expected and row.layout is SAME
    assert under(ROWS)[0].names("backbone/norm/scale") == ["norm.weight"]


def test_classifiers_are_left_out():
    kept = ["norm/scale", "batch_stats/norm/mean", "attn/kernel", "heads/bias"]
    assert [row.ours for row in without_head(ROWS)] == kept


def test_tensors_of_other_parts_are_left_out():
    tensors = {"encoder.norm.weight": np.ones(2), "head.encoder.weight": np.ones(3)}
    assert [*without_prefix(tensors, "encoder.")] == ["norm.weight"]


@pytest.mark.parametrize("hidden", [None, 40])
def test_fields_of_a_backbone_come_back(hidden):
    more = {"num_classes": 0, "image_size": 32, "norm_eps": 1e-5, "mlp_width": hidden}
    fields = {**model_fields("ViT-Ti/16"), **more, "dtype": "bfloat16"}
    found = backbone_of(fields, "ViT-Ti/16")
    assert found["backbone_fields"] == {"norm_eps": 1e-5, "mlp_width": hidden}
    assert (found["backbone_name"], found["image_size"]) == ("ViT-Ti/16", 32)
    whole = {**fields, "mlp_width": hidden or 4 * 192, "class_token": True, "dtype": "float32"}
    assert fields_of_backbone({**found, "num_classes": 7}) == whole


def test_a_backbone_that_is_no_vit_has_its_fields_as_they_are():
    fields = {"image_size": 64, "in_channels": 3, "backbone_name": "ResNet-50"}
    found = fields_of_backbone({**fields, "backbone_fields": {"depths": (1, 1, 1, 1)}})
    expected = {**model_fields("ResNet-50"), "num_classes": 0, "image_size": 64}
    assert found == {**expected, "depths": (1, 1, 1, 1)}
