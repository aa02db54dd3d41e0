"""Standard deviations of fresh parameters, against the formulas of the schemes' papers and code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models import ViT
from vit_jax.models.initializers import INIT_SCHEMES

WIDTH = 256
KEY = jax.random.key(0, impl="unsafe_rbg")  # compiles faster than threefry


def fresh_params(scheme):
    model = ViT(
        image_size=64,
        patch_size=4,
        width=WIDTH,
        depth=1,
        heads=4,
        num_classes=50,
        registers=3,
        init_scheme=scheme,
    )
    return jax.jit(model.init)(KEY, jnp.zeros((1, 64, 64, 3)))["params"]


@pytest.fixture(scope="module")
def params():
    return {scheme: fresh_params(scheme) for scheme in INIT_SCHEMES}


def close(array, std, tolerance=0.03):
    return np.std(array) == pytest.approx(std, rel=tolerance)


def test_vit_counts_the_fans_of_q_k_and_v_separately(params):
    kernel = params["vit"]["blocks_0"]["attn"]["qkv"]["kernel"]  # (width, 3, heads, head_dim)
    xavier = (2 / (WIDTH + WIDTH)) ** 0.5  # of one square matrix; of the fused one, sqrt(2 / (4 W))
    for which in range(3):
        assert close(kernel[:, which], xavier)
        assert np.abs(kernel[:, which]).max() <= 3**0.5 * xavier  # uniform, so it has this bound
    assert not np.allclose(kernel[:, 0], kernel[:, 1])


def test_vit_counts_the_fans_of_gate_and_value_separately():
    kernel = INIT_SCHEMES["vit"].gated(jax.random.key(0), (WIDTH, 2 * 640))
    xavier = (2 / (WIDTH + 640)) ** 0.5  # of the fused matrix, sqrt(2 / (W + 1280))
    gate, value = np.split(np.asarray(kernel), 2, axis=1)
    assert close(gate, xavier) and close(value, xavier)
    assert not np.allclose(gate, value)


def test_the_distillation_token_begins_apart_from_a_class_token_of_zero():
    model = ViT(image_size=8, patch_size=8, width=WIDTH, depth=1, heads=4, distilled=True)
    params = jax.jit(model.init)(KEY, jnp.zeros((1, 8, 8, 3)))["params"]
    assert not np.any(params["cls_token"])
    assert close(params["dist_token"], 0.02, 0.15)


def test_vit_counts_all_heads_in_the_fan_of_the_output_projection(params):
    kernel = params["vit"]["blocks_0"]["attn"]["out"]["kernel"]
    assert close(kernel, (2 / (WIDTH + WIDTH)) ** 0.5)


def test_vit_scheme_is_that_of_the_2020_code(params):
    tree = params["vit"]
    assert close(tree["blocks_0"]["mlp"]["fc1"]["kernel"], (2 / (WIDTH + 4 * WIDTH)) ** 0.5)
    assert close(tree["blocks_0"]["mlp"]["fc1"]["bias"], 1e-6, 0.1)
    assert close(tree["blocks_0"]["mlp"]["fc2"]["bias"], 1e-6, 0.15)
    assert close(tree["patch_embed"]["kernel"], (4 * 4 * 3) ** -0.5)  # LeCun: 1 / sqrt(fan in)
    assert close(tree["pos_embed"], 0.02)
    for zero in (tree["cls_token"], tree["head"]["kernel"], tree["head"]["bias"]):
        assert not np.any(zero)


def test_trunc02_really_has_standard_deviation_0_02(params):
    """A normal cut at two standard deviations without rescaling would have 0.0176."""
    tree = params["trunc02"]
    block = tree["blocks_0"]
    for kernel in (block["attn"]["qkv"], block["attn"]["out"], block["mlp"]["fc1"], tree["head"]):
        assert close(kernel["kernel"], 0.02, 0.02)
        assert np.abs(kernel["kernel"]).max() > 0.06  # not cut at +-2 standard deviations
        assert np.abs(kernel["kernel"]).max() < 0.2  # and no outlier at torch's clamp of 2
    assert close(tree["pos_embed"], 0.02, 0.02)
    assert close(tree["cls_token"], 0.02, 0.2)
    assert not np.any(block["mlp"]["fc1"]["bias"])


def test_trunc02_leaves_the_patch_convolution_to_torchs_default(params):
    kernel = params["trunc02"]["patch_embed"]["kernel"]
    bound = (4 * 4 * 3) ** -0.5  # torch.nn.Conv2d: uniform within 1 / sqrt(fan in)
    assert np.abs(kernel).max() <= bound
    assert close(kernel, bound / 3**0.5)


def test_normal02_is_normal_with_a_kaiming_patch_convolution(params):
    tree = params["normal02"]
    assert close(tree["blocks_0"]["attn"]["qkv"]["kernel"], 0.02, 0.02)
    assert close(tree["head"]["kernel"], 0.02)
    assert close(tree["patch_embed"]["kernel"], 0.204, 0.02)  # sqrt(2 / 48), 4 x 4 pixels of RGB


@pytest.mark.parametrize("scheme", INIT_SCHEMES)
def test_registers_start_apart_from_one_another(params, scheme):
    """Equal registers would get equal gradients and stay equal for ever."""
    first, second, third = params[scheme]["reg_tokens"][0]
    assert not np.allclose(first, second) and not np.allclose(second, third)


@pytest.mark.parametrize("scheme", INIT_SCHEMES)
def test_norms_start_as_the_identity(params, scheme):
    for norm in (params[scheme]["norm"], params[scheme]["blocks_0"]["norm1"]):
        assert np.all(norm["scale"] == 1) and np.all(norm["bias"] == 0)
