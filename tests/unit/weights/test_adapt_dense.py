"""Models with a head on a backbone begin with weights of the backbone, or of such a model."""

import json

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from tests.support.shapes import abstract_variables, random_images, random_tree
from vit_jax.config.loading import default_config
from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models import create_model
from vit_jax.runs import ModelRecord
from vit_jax.training.setup.build import _model
from vit_jax.training.setup.pretrained_init import PretrainedInit
from vit_jax.weights.adapt_dense import at_same_places, completed

TINY = {"patch_size": 4, "width": 8, "depth": 1, "heads": 2}
MIT = {"widths": (8, 8), "depths": (1, 1), "heads": (1, 1), "reductions": (2, 1)}
MIT |= {"patch_sizes": (3, 3), "strides": (2, 2), "mlp_ratios": (2, 2)}


def record_of(name, classes, **fields):
    """A trained model of 8 pixels, its record and its variables."""
    fields = {"image_size": 8, "num_classes": len(classes), **fields}
    record = ModelRecord(name, fields, Preprocessing((8, 8), 3), tuple(classes))
    shapes = abstract_variables(record.create_model(), random_images(1, 8, 8, 3))
    variables = {name: tree for name, tree in shapes.items() if name != "intermediates"}
    return PretrainedInit("there", record, random_tree(variables))


def started(start, classes="xyz", **said):
    """Fields and module of a run that starts from a record, and the adapted variables."""
    config = default_config()
    config.update(task="segmentation", init_from="there")
    for name, value in said.items():
        config.model[name] = value
    name, fields, model = _model(config, len(classes), start.record)
    record = ModelRecord(name, fields, Preprocessing((8, 8), 3), tuple(classes))
    return name, fields, model, start.fit(model, record)


def assert_complete(model, adapted):
    """The result and new values have all that the model has, and nothing else."""
    shapes = abstract_variables(model, random_images(1, 8, 8, 3))
    initial = {"params": shapes["params"], "batch_stats": shapes.get("batch_stats", {})}
    trained = {"params": adapted.params, **adapted.model_state}
    whole = completed(initial, trained)
    assert jax.tree.map(lambda x: x.shape, whole) == jax.tree.map(lambda x: x.shape, initial)
    assert at_same_places(initial, trained).keys() == trained.keys()


def test_a_classifier_is_the_backbone():
    start = record_of("ViT-Ti/16", "ab", **TINY)
    name, fields, model, adapted = started(start, name="Segmentation", decoder="mask")
    assert (name, fields["backbone_name"], fields["image_size"]) == ("Segmentation", "ViT-Ti/16", 8)
    assert fields["backbone_fields"] == {**TINY, "class_token": True}
    assert set(adapted.params) == {"backbone"}
    own = flatten_dict(adapted.params["backbone"], sep="/")
    for path, array in flatten_dict(start.variables["params"], sep="/").items():
        if not path.startswith("head/"):
            np.testing.assert_array_equal(own[path], array)
    assert set(adapted.left_out) == {"head/kernel", "head/bias"}
    assert "head/class_tokens" in adapted.fresh
    assert_complete(model, adapted)


def test_fields_of_the_backbone_are_added_to_those_of_the_weights():
    start = record_of("ViT-Ti/16", "ab", **TINY)
    said = {"name": "Segmentation", "backbone_fields": {"drop_path": 0.1, "patch_size": 2}}
    _, fields, model, adapted = started(start, **said)
    assert fields["backbone_fields"]["drop_path"] == 0.1
    assert model.patch_size == 2
    assert set(adapted.resized) == {"backbone/patch_embed/kernel", "backbone/pos_embed"}


def test_a_vit_becomes_a_backbone_with_windows_and_a_pyramid():
    start = record_of("ViT-Ti/16", "ab", **TINY)
    own = {"global_blocks": (0,), "window": 2, "position_size": 16, "pyramid_width": 4}
    own["patch_size"] = 4
    said = {"name": "Segmentation", "backbone_name": "ViTDet", "backbone_fields": own}
    _, fields, model, adapted = started(start, **said)
    backbone = model.make_backbone()
    assert (type(backbone).__name__, backbone.width) == ("ViTDet", TINY["width"])
    assert not {"class_token", "pool", "positions"} & set(fields["backbone_fields"])
    assert "backbone/cls_token" not in flatten_dict(adapted.params, sep="/")
    assert "pyramid" not in adapted.params["backbone"]
    assert_complete(model, adapted)


@pytest.mark.parametrize("classes", ["xyz", "xy"])
def test_another_run_gives_its_head_as_far_as_it_fits(classes):
    head = {"decoder": "mlp", "decoder_width": 4, "backbone_name": "MiT-B0"}
    start = record_of("Segmentation", "xyz", **head, backbone_fields=MIT)
    name, fields, model, adapted = started(start, classes)
    assert (name, fields["decoder"]) == ("Segmentation", "mlp")
    classifier = {"head/classifier/kernel", "head/classifier/bias"}
    assert set(adapted.fresh) == (set() if classes == "xyz" else classifier)
    assert set(adapted.model_state["batch_stats"]) == {"head"}
    assert_complete(model, adapted)


def test_another_head_keeps_the_backbone():
    head = {"decoder": "mlp", "decoder_width": 4, "backbone_name": "MiT-B0"}
    start = record_of("Segmentation", "xyz", **head, backbone_fields=MIT)
    name, fields, _, adapted = started(start, name="DETR", queries=3, width=8, heads=2)
    assert (name, fields["backbone_name"], fields["backbone_fields"]) == ("DETR", "MiT-B0", MIT)
    assert set(adapted.params) == {"backbone"}


def test_a_backbone_of_another_size_is_refused_in_a_sentence():
    start = record_of("ViT-Ti/16", "ab", **TINY)
    with pytest.raises(UserError, match="model.backbone_name = 'ViT-S/16' has width 384"):
        started(start, name="Segmentation", backbone_name="ViT-S/16")
    with pytest.raises(UserError, match="model.backbone_name = 'MiT-B0' has"):
        started(start, name="SegFormer-B0")


def test_a_record_with_fields_of_a_backbone_comes_back_from_json():
    [record] = [record_of("Segmentation", "xyz", backbone_fields=TINY | {"patch_size": (4, 4)})]
    back = ModelRecord.from_json(json.loads(json.dumps(record.record.to_json())))
    assert back == record.record
    assert create_model(back.name, **back.fields) == record.record.create_model()
