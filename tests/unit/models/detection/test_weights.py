"""YOLOS and DETR of transformers, and DETR of its authors: read, and written back."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.stored import loaded, stored, write_files
from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.inference.detector import Detector
from vit_jax.inference.loading import predictor_class
from vit_jax.models.detection.weights import detr
from vit_jax.models.registry import model_fields
from vit_jax.weights.convert import model_name, read_pretrained, write_pretrained
from vit_jax.weights.formats import Hints
from vit_jax.weights.mapping import joined, write_tensors

TOLERANCE = 2e-5


def close(found, expected):
    difference = np.abs(np.asarray(found) - expected).max()
    assert difference <= TOLERANCE * max(np.abs(expected).max(), 1), difference


@pytest.mark.parametrize("name", ["yolos_mid", "yolos_plain"])
def test_yolos_agrees_in_every_block_and_prediction(name):
    case = stored(f"detection/{name}")
    record, variables = loaded(f"detection/{name}")
    assert (record.name, record.class_names) == ("YOLOS", ("ant", "bee", "cat"))
    model = record.create_model()
    assert model.mid_positions == (name == "yolos_mid") and model.image_size == (16, 24)
    patches = slice(1 + model.queries, None)

    @jax.jit
    def run(several):
        return [model.apply(variables, images, mutable="intermediates") for images in several]

    cases = (case.answers, case.others)
    for (found, kept), expected in zip(run([c["images"] for c in cases]), cases, strict=True):
        for i in range(3):
            block = kept["intermediates"]["backbone"][f"blocks_{i}"]["out"][0]
            ours = np.concatenate([block[:, :1], block[:, patches], block[:, 1:6]], axis=1)
            close(ours, expected[f"block_{i}"])
        close(found.logits, expected["logits"])
        close(found.boxes, expected["boxes"])


def test_detr_agrees_in_every_layer_and_prediction():
    case = stored("detection/detr").answers
    record, variables = loaded("detection/detr")
    assert (record.name, record.class_names) == ("DETR", ("ant", "bee", "cat"))
    assert predictor_class(record) is Detector
    model = record.create_model()
    found, kept = jax.jit(lambda x: model.apply(variables, x, mutable="intermediates"))(
        case["images"]
    )
    layers = [f"{which}coder_{i}" for which in ("en", "de") for i in range(2)]
    for number, layer in enumerate(layers):
        close(kept["intermediates"][layer]["out"][0], case[f"block_{number}"])
    close(found.logits, case["logits"])
    close(found.boxes, case["boxes"])
    [first] = found.aux
    close(first.logits, case["aux_logits"])
    close(first.boxes, case["aux_boxes"])


@pytest.mark.parametrize("name", ["yolos_mid", "yolos_plain"])
def test_yolos_goes_back_to_the_same_file(name, tmp_path):
    case = stored(f"detection/{name}")
    record, variables = loaded(f"detection/{name}")
    write_pretrained(tmp_path / "back", "huggingface", record, variables)
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert back.keys() == case.tensors.keys()
    for tensor, array in case.tensors.items():
        np.testing.assert_array_equal(back[tensor], array, tensor)
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert all(config[key] == case.config[key] for key in config.keys() & case.config.keys())
    again, _ = read_pretrained(tmp_path / "back")
    assert again.fields == record.fields and again.preprocessing == record.preprocessing


def test_detr_goes_back_to_the_same_tensors_and_its_authors_are_read(tmp_path):
    case = stored("detection/detr")
    record, variables = loaded("detection/detr")
    back = write_tensors(detr.ROWS, joined(variables))
    assert back.keys() == case.tensors.keys()
    for tensor, array in case.tensors.items():
        np.testing.assert_array_equal(back[tensor], array, tensor)
    theirs = stored("detection/detr_authors")
    folder = write_files(tmp_path / "authors", theirs.tensors)
    of_authors, same = read_pretrained(folder, dataclasses.replace(theirs.hints))
    assert of_authors.fields == record.fields
    jax.tree.map(np.testing.assert_array_equal, same, variables)
    with pytest.raises(UserError, match="must be ResNet-50 or ResNet-101"):
        write_pretrained(tmp_path / "back", "huggingface", record, variables)
    with pytest.raises(UserError, match="heads for width 8; use --heads"):
        read_pretrained(folder, Hints())


def test_published_sizes_have_their_names():
    for name in ("DETR-R50", "YOLOS-S"):
        architecture = name.split("-")[0]
        assert model_name(model_fields(name), architecture) == name
    fields = model_fields("DETR-R50")
    config = detr.config(fields, Preprocessing((800, 800)), ("a", "b"))
    assert (config["backbone"], config["num_queries"], config["d_model"]) == ("resnet50", 100, 256)


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("detr", {"dilation": True}, "dilation = True is not supported"),
        ("detr", {"position_embedding_type": "learned"}, "'learned' is not supported"),
        ("detr", {"decoder_attention_heads": 4}, "the encoder has 2 heads and the decoder 4"),
        ("yolos_plain", {"id2label": {"7": "x"}}, "should name outputs from 0 to 2"),
        ("yolos_plain", {"hidden_size": 99}, "hidden_size = 99, but the tensors have 16"),
    ],
)
def test_configurations_of_other_models_are_refused(name, changes, said, tmp_path):
    case = stored(f"detection/{name}")
    write_files(tmp_path / "x", case.tensors, {**case.config, **changes}, case.preprocessor)
    with pytest.raises(UserError, match=said):
        read_pretrained(tmp_path / "x")
