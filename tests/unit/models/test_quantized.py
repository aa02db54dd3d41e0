"""Kernels of few bits: rounding, packing, and products of whole numbers."""

import jax
import numpy as np
import pytest

from tests.support.shapes import abstract_variables
from vit_jax.models import create_model
from vit_jax.models.description import describe, map_described, model_roles
from vit_jax.models.layers.linear import Dense
from vit_jax.models.quantized import Quantized, dequantized, packed, unpacked


def test_each_output_channel_has_the_scale_of_its_largest_number():
    kernel = np.array([[1.0, -4.0, 0.0], [-0.25, 1.0, 0.0]])
    found = Quantized.of(kernel, inputs=(-2,), bits=8)
    np.testing.assert_allclose(found.scale, [[1 / 127, 4 / 127, 1 / 127]], rtol=1e-6)
    assert found.values.dtype == np.int8
    assert found.values.tolist() == [[127, -127, 0], [-32, 32, 0]]
    four = Quantized.of(kernel, inputs=(-2,), bits=4)
    assert four.values.tolist() == [[7, -7, 0], [-2, 2, 0]]
    np.testing.assert_allclose(four.unbox()[0], [1.0, -4.0, 0.0], rtol=1e-6)


def test_damage_stays_visible():
    found = Quantized.of(np.array([[1.0, 2.0], [np.nan, 3.0], [np.inf, 4.0]]), (-2,), 8)
    assert np.isnan(found.unbox()[:, 0]).all()
    assert np.isfinite(found.unbox()[:, 1]).all()


def test_no_weight_moves_by_more_than_half_a_scale():
    kernel = np.random.default_rng(0).normal(size=(3, 5, 2, 4))
    for bits in (8, 4):
        found = Quantized.of(kernel, (-4, -3), bits)
        assert found.scale.shape == (1, 1, 2, 4)
        assert np.all(np.abs(found.unbox() - kernel) <= 0.5001 * found.scale)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_file_gives_the_same_kernel(bits):
    tree = {"norm": {"scale": np.ones(3)}, "head": {"bias": np.zeros(5)}}
    kernel = Quantized.of(np.random.default_rng(1).normal(size=(3, 5)), (-2,), bits)
    stored = packed({**tree, "fc": {"kernel": kernel}})
    assert (
        sum(leaf.nbytes for leaf in jax.tree.leaves(stored["fc"]))
        == {
            8: 15 + 4 * 5,
            4: 8 + 4 * 5 + 4 * 2,  # 15 numbers in 8 bytes; a scale for each output; the shape
        }[bits]
    )
    again = unpacked(stored, "int8")
    assert again["norm"].keys() == {"scale"}
    assert again["fc"]["kernel"].activations == "int8"
    assert again["fc"]["kernel"].bits == bits
    np.testing.assert_array_equal(again["fc"]["kernel"].values, kernel.values)


def test_two_numbers_of_four_bits_share_a_byte():
    kernel = Quantized(np.array([[1, -7, 7]], np.int8), np.ones((1, 3), np.float32), bits=4)
    stored = packed({"kernel": kernel})["kernel"]
    assert stored["int4"].tolist() == [0x91, 0x07]  # -7 is 9 in two's complement of four bits


def test_damaged_bytes_are_refused():
    node = {"int4": np.zeros(7, np.uint8), "shape": np.array([3, 5]), "scale": np.ones((1, 5))}
    with pytest.raises(ValueError, match="7 bytes are not those of 15 numbers"):
        unpacked({"kernel": node})


def test_a_dense_layer_multiplies_whole_numbers():
    draw = np.random.default_rng(2)
    x = draw.normal(size=(2, 3, 4, 5)).astype(np.float32)
    x[0, 0], x[0, 1, 0, 0] = 0, np.nan
    kernel = draw.normal(size=(4, 5, 6))
    bias = draw.normal(size=6).astype(np.float32)
    layer = Dense(6, axes=2)
    with jax.disable_jit():
        for activations in ("float", "int8"):
            quantized = Quantized.of(kernel, (-3, -2), 8, activations)
            found = layer.apply({"params": {"kernel": quantized, "bias": bias}}, x)
            flat = x.reshape(6, 20).astype(np.float64)
            if activations == "int8":
                largest = np.abs(flat).max(axis=1, keepdims=True)
                scale = np.where(largest == 0, 1, largest) / 127
                flat = np.round(flat / scale) * scale
            expected = flat @ (quantized.values * quantized.scale).reshape(20, 6) + bias
            np.testing.assert_allclose(found, expected.reshape(2, 3, 6), rtol=2e-5, atol=2e-5)
            np.testing.assert_array_equal(found[0, 0], bias)  # an empty token
            assert np.isnan(found[0, 1]).all()  # no number hides behind whole ones


@pytest.mark.parametrize("scan_layers", [False, True])
def test_a_model_multiplies_whole_numbers(scan_layers):
    model, quantized, images = small_model(scan_layers)
    program = str(jax.make_jaxpr(model.apply)({"params": quantized}, images))
    blocks = 1 if scan_layers else 2  # a scan has one program for all
    assert program.count("preferred_element_type=int32") == 4 * blocks  # qkv, out, fc1, fc2


def test_a_model_computes_with_its_kernels_in_float():
    model, quantized, images = small_model(scan_layers=True, activations="float")
    apply = jax.jit(model.apply)
    found = apply({"params": quantized}, images)
    expected = apply({"params": dequantized(quantized)}, images)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def small_model(scan_layers, activations="int8"):
    """A ViT, its parameters with quantized kernels, and images."""
    sizes = {"patch_size": 8, "width": 8, "depth": 2, "heads": 2, "mlp_width": 12}
    model = create_model(
        "ViT-Ti/16", image_size=16, in_channels=1, num_classes=3, scan_layers=scan_layers, **sizes
    )
    images = np.random.default_rng(3).normal(size=(2, 16, 16, 1)).astype(np.float32)
    params = abstract_variables(model, images)["params"]
    draw = np.random.default_rng(4)
    params = jax.tree.map(lambda x: draw.normal(size=x.shape).astype(np.float32), params)

    def change(parameter, leaf):
        axes = parameter.role.matrix and parameter.role.matrix.axes(leaf.ndim)
        return Quantized.of(leaf, axes[0], 8, activations) if axes else leaf

    return model, map_described(change, params, describe(params, model_roles(model))), images
