"""Muon: which parameters are matrices, and what their update is."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.support.optimizers import (
    after,
    assert_close,
    named,
    normal_like,
    optimizer_of,
    small_params,
)
from vit_jax.config import default_config
from vit_jax.errors import UserError
from vit_jax.models import create_model
from vit_jax.models.dense import gives
from vit_jax.models.description import describe, model_roles
from vit_jax.models.inputs import abstract_input
from vit_jax.models.registry import MODELS
from vit_jax.training.optim.optimizer import (
    count_branches,
    optimizer_notes,
)


@pytest.mark.smoke
def test_muon_turns_q_k_and_v_apart_and_heads_together():
    """Against optax's Muon on the matrices written out, and its Adam on everything else."""
    params = jax.device_get(small_params())
    gradients = [jax.device_get(normal_like(params, seed)) for seed in (2, 3)]
    optimizer = optimizer_of(params, 0.01, name="muon", momentum=0.95)
    updated = jax.device_get(after(optimizer, params, gradients, compiled=True))
    got = named(updated)

    def matrices(tree):
        out = {}
        for name, leaf in named(tree).items():
            inside = name.startswith("blocks") and name.endswith("kernel")
            if inside and "qkv" in name:
                out |= {f"{name}{i}": leaf[:, i].reshape(16, 16) for i in range(3)}
            elif inside:
                out[name] = leaf.reshape(-1, leaf.shape[-1])
        return out

    own = optax.contrib.muon(0.01, beta=0.95, consistent_rms=0.2)
    flat = [matrices(gradient) for gradient in gradients]
    expected = after(own, matrices(params), flat, compiled=True)
    assert len(expected) == 2 * (3 + 2)
    assert_close(matrices(updated), expected, rtol=1e-4, atol=1e-6)

    adam = named(after(optax.adam(0.01), params, gradients, compiled=True))
    for name in ("head/kernel", "patch_embed/kernel", "blocks_0/attn/qkv/bias", "pos_embed"):
        np.testing.assert_allclose(got[name], adam[name], rtol=1e-5, err_msg=name)


def test_muon_takes_a_convolution_as_the_matrix_of_its_window_and_leaves_depthwise_ones():
    """Against optax's Muon on (height * width * in, out), in blocks deep in the tree, stacked and
    apart; everything else of a stage is Adam's."""
    random = np.random.RandomState(0)

    def leaf(*shape):
        return {"kernel": random.randn(*shape).astype(np.float32)}

    block = {"conv": leaf(3, 3, 4, 6), "depthwise": {"conv": leaf(3, 3, 1, 8)}, "se": leaf(8, 2)}
    stage = {"blocks_0": block, "downsample": leaf(2, 2, 4, 8), "patch_embed": leaf(2, 2, 3, 4)}
    stack = jax.tree.map(lambda x: np.stack([x, 2 * x]), block)
    params = {"stages_0": stage, "encoder": {"blocks": stack}}
    gradients = [jax.device_get(normal_like(params, seed)) for seed in (2, 3)]

    def matrices(tree):
        one, two = tree["stages_0"]["blocks_0"], tree["encoder"]["blocks"]
        leaves = [one["conv"], one["se"]]
        leaves += [
            jax.tree.map(lambda x, i=i: x[i], two[k]) for i in (0, 1) for k in ("conv", "se")
        ]
        return {
            str(i): x["kernel"].reshape(-1, x["kernel"].shape[-1]) for i, x in enumerate(leaves)
        }

    optimizer = optimizer_of(params, 0.01, name="muon", momentum=0.95)
    got = jax.device_get(after(optimizer, params, gradients, compiled=True))
    own = optax.contrib.muon(0.01, beta=0.95, consistent_rms=0.2)
    flat = [matrices(gradient) for gradient in gradients]
    expected = after(own, matrices(params), flat, compiled=True)
    assert expected["0"].shape == (36, 6)
    assert_close(matrices(got), expected, rtol=1e-4, atol=1e-6)
    adam = named(after(optax.adam(0.01), params, gradients, compiled=True))
    others = [name for name in adam if "depthwise" in name or "blocks" not in name]
    assert len(others) == 4
    for name in others:
        np.testing.assert_allclose(named(got)[name], adam[name], rtol=1e-5, err_msg=name)


def bottleneck(inside, width, units):
    """Kernels of a ResNet's stage (He et al. 2016, table 1), the shortcut of the first included."""
    first = inside * width + 9 * width**2 + 4 * width**2 + 4 * inside * width
    return first + (units - 1) * (4 * width**2 + 9 * width**2 + 4 * width**2)


def mobile_blocks():
    """Kernels but the depthwise ones of EfficientNet-B0 (Tan & Le 2019, table 1): expansion,
    projection, and squeeze and excitation to a quarter of what enters the block."""
    total, inside = 0, 32
    for expansion, outside, count in (
        *((1, 16, 1), (6, 24, 2), (6, 40, 2), (6, 80, 3), (6, 112, 3), (6, 192, 4), (6, 320, 1)),
    ):
        for _ in range(count):
            wide = expansion * inside
            total += inside * wide if expansion > 1 else 0
            total += 2 * wide * (inside // 4) + wide * outside
            inside = outside
    return total


# A block of width w has 4 w^2 in attention (q, k, v, out) and 2 r w^2 in an MLP of ratio r.
MATRICES = {
    "ViT-Ti/16": ({"depth": 2}, 2 * 12 * 192**2),
    "ViT-Ti/16 stacked": ({"depth": 2, "scan_layers": True}, 2 * 12 * 192**2),
    "ViTC-1GF": ({"depth": 2}, 2 * (4 + 2 * 3) * 192**2),  # an MLP of ratio 3
    "R+ViT-Ti/16": ({"depth": 2}, 2 * 12 * 192**2),
    "R50+ViT-B/16": (
        {"depth": 1},
        12 * 768**2 + bottleneck(64, 64, 3) + bottleneck(256, 128, 4) + bottleneck(512, 256, 9),
    ),
    "AutoFormer-T": (  # heads of 64 channels, and MLPs, of each block
        {"depth": 2, "heads": (3, 4), "mlp_width": (672, 768)},
        4 * 192 * 64 * (3 + 4) + 2 * 192 * (672 + 768),
    ),
    "ViTDet-B/16": ({"depth": 1, "global_blocks": (0,)}, 12 * 768**2),
    "CaiT-XXS/24": ({"depth": 2}, (2 + 2) * 12 * 192**2),  # two of them for the class token
    "FlexiViT-S": ({"depth": 2}, 2 * 12 * 384**2),
    "NaFlexViT-B/16": ({"depth": 1}, 12 * 768**2),
    # Attention in time and in space, and the layer between them.
    "TimeSformer-B/16": ({"depth": 1}, (4 + 4 + 1 + 8) * 768**2),
    "V-JEPA2-L/16": ({"depth": 1}, (4 + 8) * 1024**2),
    "Mixer-S/32": ({"depth": 2}, 2 * (2 * 49 * 256 + 2 * 512 * 2048)),
    "Swin-T": ({}, 12 * (2 * 96**2 + 2 * 192**2 + 6 * 384**2 + 2 * 768**2)),
    "PVT-Tiny": (  # the reduction by r is a convolution of r^2 w^2
        {},
        2 * (64**2 * (4 + 16 + 64) + 128**2 * (4 + 16 + 16) + 320**2 * (4 + 8 + 4) + 512**2 * 12),
    ),
    "PVTv2-B0": (
        {},
        2 * (32**2 * (4 + 64 + 16) + 64**2 * (4 + 16 + 16) + 160**2 * (4 + 4 + 8) + 256**2 * 12),
    ),
    "ConvNeXt-T": ({}, 8 * (3 * 96**2 + 3 * 192**2 + 9 * 384**2 + 3 * 768**2)),
    # Of torchvision's 25,557,032 without the classifier, BatchNorm and the first convolution.
    "ResNet-50": ({}, 25_557_032 - 2_049_000 - 2 * 26_560 - 7 * 7 * 3 * 64),
    "EfficientNet-B0": ({}, mobile_blocks()),
}


def shapes_of(name, **fields):
    """The shapes of a model's parameters, and their descriptions."""
    model = create_model(name.split(" ")[0], **fields)
    init = functools.partial(model.init, train=False)
    params = jax.eval_shape(init, jax.random.key(0), abstract_input(model))["params"]
    return params, describe(params, model_roles(model))


@pytest.mark.parametrize("name", MATRICES)
def test_muon_has_all_matrices_of_all_blocks_of_every_architecture(name):
    fields, expected = MATRICES[name]
    shapes, described = shapes_of(name, **fields)
    config = default_config()
    config.optimizer.name = "muon"
    total = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    counts = count_branches(config, shapes, described)
    assert counts == {"muon": expected, "adam": total - expected, "frozen": 0}
    assert optimizer_notes(config, shapes, described) == []


def test_every_registered_architecture_has_its_count_of_matrices():
    counted = {MODELS[name.split(" ")[0]].architecture for name in MATRICES}
    # Architectures of the package; what tests register is theirs. Dense models have a backbone.
    registered = {p.architecture for p in MODELS.values() if gives(p.architecture) == "classes"}
    assert {a for a in registered if a.__module__.startswith("vit_jax.")} == counted


def test_muon_without_a_matrix_is_refused():
    params = {"encoder": {"layer": {"kernel": jnp.zeros((3, 4))}}, "blocks_0": {"scale": 1.0}}
    with pytest.raises(UserError, match="'muon'.* has none: .*encoder, blocks_0.*name=adamw"):
        optimizer_of(params, name="muon")
