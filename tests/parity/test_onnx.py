"""Graphs as onnxruntime and OpenVINO compute them, of the optional group `onnx` (`make onnx`)."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vit_jax
from tests.support.exported import NAMES, write_classifier
from vit_jax.cli import main
from vit_jax.errors import UserError
from vit_jax.export import onnx as exports
from vit_jax.inference.predictor import ArraySpec, Predictor

pytestmark = pytest.mark.parity
pytest.importorskip("jax2onnx", reason="of the optional group onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="of the optional group onnx")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_classifier(tmp_path_factory.mktemp("onnx") / "run", depth=2, scan_layers=True)


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(0, 256, (5, 16, 16, 3)).astype(np.uint8)


@pytest.fixture(scope="module")
def expected(run, images):
    return jax.device_get(vit_jax.load(run.path).run(images))


def exported(run, name, *options):
    folder = run.path.parent / name
    assert main(["export", str(run.path), str(folder), *options]) == 0
    return folder


def test_a_graph_takes_bytes_of_any_batch_and_says_what_they_are(run, images, expected, capsys):
    folder = exported(run, "float", "--to=onnx")
    assert "compared on 8 images, in float32: differs by logits" in capsys.readouterr().out
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    [pixels] = session.get_inputs()
    assert (pixels.name, pixels.type, pixels.shape[1:]) == ("images", "tensor(uint8)", [16, 16, 3])
    assert [one.name for one in session.get_outputs()] == ["logits", "probabilities"]
    for count in (1, 5):
        found = session.run(None, {"images": images[:count]})
        for values, name in zip(found, ("logits", "probabilities"), strict=True):
            np.testing.assert_allclose(values, expected[name][:count], atol=1e-5)
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["class_names"]) == list(NAMES)
    preprocessing = json.loads(facts["preprocessing"])
    assert preprocessing == vit_jax.load(run.path).preprocessing.to_dict()
    assert json.loads(facts["outputs"])["probabilities"]["labels"] == list(NAMES)
    told = json.loads((folder / "exported.json").read_text())
    assert told["compared_on"] == 8 and max(told["differences"].values()) <= 1e-5
    with pytest.raises(UserError, match="holds a model for onnx; open it with onnxruntime"):
        vit_jax.load_exported(folder)


def test_weights_of_8_bits_are_smaller_and_near(run, images, expected):
    import onnx

    folder = exported(run, "int8", "--to=onnx", "--int8")
    graph = onnx.load(folder / "model.onnx").graph
    kinds = [node.op_type for node in graph.node]
    assert kinds.count("MatMulInteger") == 4 * 2 + 1  # qkv, out, fc1, fc2 of two blocks; the head
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    [found] = session.run(["logits"], {"images": images})
    difference = np.abs(found - expected["logits"]).max()
    assert 1e-4 < difference < 0.05 * np.abs(expected["logits"]).max()


def test_openvino_computes_the_same_in_float32(run, images, expected):
    openvino = pytest.importorskip("openvino", reason="of the optional group onnx")
    folder = exported(run, "openvino", "--to=openvino")
    hint = {"INFERENCE_PRECISION_HINT": "f32"}
    model = openvino.Core().compile_model(folder / "model.xml", "CPU", hint)
    found = model(images)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-5)


def test_values_that_a_loop_reads_keep_their_names():
    from onnx import TensorProto, helper

    from vit_jax.export.onnx_graph import with_short_names

    def value(name, kind=TensorProto.FLOAT, shape=(2,)):
        return helper.make_tensor_value_info(name, kind, shape)

    once = helper.make_node("Add", ["before", "weights"], ["after"])
    again = helper.make_node("Identity", ["going"], ["goes_on"])
    inner = [value("number", TensorProto.INT64, ()), value("going", TensorProto.BOOL, ())]
    body = helper.make_graph(
        [once, again],
        "body",
        [*inner, value("before")],
        [value("goes_on", TensorProto.BOOL, ()), value("after")],
    )
    times = helper.make_tensor("times", TensorProto.INT64, (), [3])
    weights = helper.make_tensor("start", TensorProto.FLOAT, (2,), [1.0, 2.0])
    nodes = [
        helper.make_node("Neg", ["start"], ["weights"]),
        helper.make_node("Loop", ["times", "", "images"], ["sums"], body=body),
    ]
    graph = helper.make_graph(nodes, "graph", [value("images")], [value("sums")], [times, weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    session = onnxruntime.InferenceSession(with_short_names(model).SerializeToString())
    [found] = session.run(None, {"images": np.zeros(2, np.float32)})
    np.testing.assert_array_equal(found, [-3, -6])


class CallsPython(Predictor):
    @property
    def outputs(self):
        return {"sums": ArraySpec(("batch",), "float32", "sums of pixels")}

    def function(self, variables, images):
        with jax.named_scope("ViT/blocks_3/mlp"):
            shape = jax.ShapeDtypeStruct(images.shape, jnp.float32)
            pixels = jax.pure_callback(lambda x: x.astype(np.float32), shape, images)
        return {"sums": pixels.sum((1, 2, 3))}


def test_an_operation_that_onnx_lacks_is_named_with_its_layer(run):
    predictor = CallsPython(None, {}, vit_jax.load(run.path).preprocessing)
    with pytest.raises(UserError) as refused:
        exports.graph_of(predictor)
    sentence = "ONNX cannot take the operation 'pure_callback' of the layer ViT/blocks_3/mlp"
    assert str(refused.value).startswith(sentence)


def test_a_graph_that_gives_other_values_is_not_written():
    values = {"depth": np.array([200.0, 3.0], np.float32)}
    near = {"depth": values["depth"] + np.float32(1.9e-3)}
    assert exports.compared(near, values, "onnxruntime")["depth"] == pytest.approx(1.9e-3, rel=0.02)
    for other in (values["depth"] + np.float32(2.2e-3), np.array([np.nan, 3.0], np.float32)):
        with pytest.raises(UserError, match="gives other values than the model: 'depth' differs"):
            exports.compared({"depth": other}, values, "onnxruntime")
