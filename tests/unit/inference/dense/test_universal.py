"""One trained model with several heads: each is a predictor of its own."""

import json

import jax
import numpy as np
import pytest

from tests.unit.models.universal.test_module import FIELDS, HEADS
from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.inference.classifier import Classifier
from vit_jax.inference.dense.depth import DepthEstimator
from vit_jax.inference.dense.segmenter import Segmenter
from vit_jax.inference.dense.universal import Universal
from vit_jax.inference.detector import Detector
from vit_jax.inference.loading import predictor_class
from vit_jax.models.inputs import trace_init
from vit_jax.runs import ModelRecord

NAMES = ("a", "b", "c")


@pytest.fixture(scope="module")
def record():
    return ModelRecord(
        "UniversalViT",
        {"num_classes": 3, "task_heads": HEADS, **FIELDS},
        Preprocessing((16, 16), 3),
        NAMES,
        "none",
        task="multitask",
        head_classes={"segmentation": ("background", *NAMES), "detection": NAMES},
    )


@pytest.fixture(scope="module")
def universal(record):
    shape = jax.ShapeDtypeStruct((1, 16, 16, 3), np.float32)
    model = record.create_model()
    shapes = trace_init(model, shape)
    rng = np.random.RandomState(0)
    variables = jax.tree.map(lambda x: 0.3 * rng.randn(*x.shape).astype(np.float32), shapes)
    read = ModelRecord.from_json(json.loads(json.dumps(record.to_json())))
    assert read.create_model() == model and predictor_class(read) is Universal
    return Universal.of_record(read, variables)


@pytest.fixture(scope="module")
def images():
    return np.random.RandomState(0).randint(0, 256, (2, 16, 16, 3)).astype(np.uint8)


def test_heads_are_predictors_of_their_kinds_with_their_classes(universal):
    kinds = {name: type(part) for name, part in universal.parts.items()}
    assert kinds == {
        "classification": Classifier,
        "segmentation": Segmenter,
        "depth": DepthEstimator,
        "detection": Detector,
    }
    assert universal.part("segmentation").class_names == ("background", *NAMES)
    assert universal.part("detection").class_names == NAMES
    with pytest.raises(UserError, match="no head 'dept'; did you mean 'depth'"):
        universal.part("dept")


@pytest.mark.slow
def test_all_heads_together_give_what_each_gives_alone(universal, images, tmp_path):
    found = universal(images)
    together = jax.jit(universal.function)(universal.variables, images)
    assert set(together) == set(universal.outputs)
    for name, part in universal.parts.items():
        alone = part.run(images)
        for of, x in alone.items():
            np.testing.assert_allclose(together[f"{name}/{of}"], x, atol=1e-4)
    assert [set(row) for row in found] == [set(universal.parts)] * 2
    assert found[0]["depth"].shape == found[0]["segmentation"].classes.shape == (16, 16)
    written = universal.write(tmp_path, "one", found[0], images[0])
    assert {path.name for path in written} >= {"one_classes.png", "one_depth.png"}
    assert all(path.is_file() for path in written)
