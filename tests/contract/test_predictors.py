"""What a predictor says of its function is what the function does, whatever the task."""

import io
import json

import jax
import numpy as np
import pytest
from jax import export
from PIL import Image

from tests.conftest import ROOT
from tests.contract.test_tasks import TASKS, changes_of
from vit_jax.config import load_config
from vit_jax.inference.loading import predictor_class
from vit_jax.runs import ModelRecord
from vit_jax.serving.answers import result_fields, written_files
from vit_jax.serving.card import model_card
from vit_jax.serving.engine import Engine
from vit_jax.serving.limits import Limits
from vit_jax.serving.reading import Upload
from vit_jax.text import to_json
from vit_jax.training.setup.build import build

# Shapes of the outputs for one image: the model has 8 units and 10 classes.
SHAPES = {
    "classification": {"logits": (10,), "probabilities": (10,)},
    "autoencoder": {"images": (16, 16, 1)},
    "contrastive": {"vectors": (4,)},
    "depth": {"depth": (16, 16)},
    "detection": {"boxes": (6, 4), "probabilities": (6, 11)},
    "multitask": {"segmentation/logits": (16, 16, 11)},
    "segmentation": {"logits": (16, 16, 11)},
    "supernet": {"logits": (10,), "probabilities": (10,)},
}


@pytest.fixture(scope="module", params=TASKS)
def task(request):
    return request.param


@pytest.fixture(scope="module")
def made(task, data_dir):
    """The predictor of a run of the task that has not begun, its record and all variables."""
    changes = changes_of(task, **{"data.dir": data_dir})
    experiment = build(load_config(str(ROOT / "configs" / "digits.py"), changes))
    shapes = experiment.abstract_state().variables()
    variables = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    record = experiment.record
    return predictor_class(record).of_record(record, variables), record, variables


def kinds(arrays):
    """Shape and type of each array."""
    return {name: (x.shape, x.dtype) for name, x in arrays.items()}


def test_the_outputs_are_as_described(task, made):
    predictor, *_ = made
    assert predictor.inputs["images"].shape == ("batch", 16, 16, 1)
    expected = SHAPES.get(task, {"features": (8,)})
    function = jax.jit(predictor.function)
    for count in (1, 3):
        images = predictor.inputs["images"].of_batch(count)
        assert images.dtype == np.uint8
        found = jax.eval_shape(function, predictor.variables, images)
        assert {name: x.shape for name, x in found.items()} == {
            name: (count, *shape) for name, shape in expected.items()
        }
        described = {name: spec.of_batch(count) for name, spec in predictor.outputs.items()}
        assert kinds(found) == kinds(described)
        assert {x.dtype for x in found.values()} == {np.dtype(np.float32)}


def test_the_record_alone_makes_the_predictor_again(made):
    predictor, record, variables = made
    read = ModelRecord.from_json(json.loads(json.dumps(record.to_json())))
    assert read == record
    again = predictor_class(read).of_record(read, variables)
    assert type(again) is type(predictor)
    assert again.describe() == predictor.describe()
    assert json.loads(json.dumps(predictor.describe()))["preprocessing"]["size"] == [16, 16]


def test_the_function_is_exported_for_any_number_of_images(task, made):
    predictor, *_ = made
    [count] = export.symbolic_shape("count")
    images = predictor.inputs["images"].of_batch(count)
    variables = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), predictor.variables)
    exported = export.export(jax.jit(predictor.function))(variables, images)
    expected = SHAPES.get(task, {"features": (8,)})
    assert [str(x.shape[0]) for x in exported.out_avals] == ["count"] * len(expected)
    assert [x.shape[1:] for x in exported.out_avals] == list(expected.values())


@pytest.mark.slow
def test_results_are_served_as_json(task, made):
    """Two images of different sizes in a batch, as values of JSON and as files."""
    predictor, *_ = made
    engine, images = Engine(predictor, 2, 10**6), []
    for number, side in enumerate((16, 30)):
        file = io.BytesIO()
        Image.fromarray(np.full((side, side + 2), 60, np.uint8)).save(file, "PNG")
        images.append(Upload(str(number), file.getvalue()))
    results = engine.compute([engine.prepare(image) for image in images])
    assert len(results) == 2
    for image, result in zip(images, results, strict=True):
        fields = result_fields(predictor, result, top=3)
        assert fields and json.loads(to_json(fields)) == fields
        if predictor.files:
            files = written_files(predictor, result, engine.decode(image))
            assert files and json.loads(to_json(files)) == files
    assert model_card(predictor, made[1].to_json(), Limits(), (1, 2))["cost"]["parameters"] > 0
