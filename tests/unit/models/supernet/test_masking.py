"""Subnets by masks and by slices are the same, and their costs are those of the models."""

import jax
import numpy as np
import pytest

from tests.support.shapes import random_variables
from vit_jax.models import create_model
from vit_jax.models.inputs import trace_init
from vit_jax.models.summary.cost import trace_cost
from vit_jax.models.supernet.cost import subnet_cost
from vit_jax.models.supernet.masking import as_subnet, check_space, slice_subnet, subnet_of
from vit_jax.models.supernet.space import SearchSpace, Subnet
from vit_jax.tasks.supernet import Supernet

FIELDS = {
    "num_classes": 3,
    "image_size": 8,
    "patch_size": 4,
    "in_channels": 1,
    "width": 12,
    "depth": 2,
    "heads": 3,
    "head_dim": 4,
    "mlp_width": 24,
}
SUBNETS = [
    Subnet(8, (1, 2), (1.5, 1.0)),
    Subnet(4, (3,), (2.0,)),
]
# Every kind of parameter that depends on a size.
MANY = {
    "norm_order": "branch",
    "qk_norm": "rms",
    "qkv_bias": "qv",
    "layer_scale": 0.1,
    "registers": 2,
    "positions": "relative",
    "mlp_norm": True,
    "embed_norm": True,
    "learned_temperature": True,
    "representation_size": 5,
    "class_token": True,
    "pool": "mean",
}


def test_masked_and_sliced_subnets_agree_in_one_program():
    model = create_model("ViT", **FIELDS, **MANY)
    images = np.random.default_rng(0).normal(size=(2, 8, 8, 1)).astype(np.float32)
    params = random_variables(model, images)["params"]

    @jax.jit
    def masked(sizes):
        with as_subnet(model, params, sizes) as own:
            logits = model.apply({"params": own}, images)
        return logits, own

    sizes = [one.sizes(model.depth) for one in SUBNETS]
    for subnet, one in zip(SUBNETS, sizes, strict=True):
        small, sliced = subnet_of(model, subnet), slice_subnet(model, params, subnet)
        shapes = trace_init(small, images)["params"]
        assert jax.tree.map(np.shape, sliced) == jax.tree.map(np.shape, shapes)
        logits, own = masked(one)
        if subnet is SUBNETS[0]:
            with jax.disable_jit():
                expected = small.apply({"params": sliced}, images)
            np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
        # What is outside of the mask is zero, and nothing else.
        kept = sum(int(np.count_nonzero(x)) for x in jax.tree.leaves(own))
        assert kept == sum(int(np.count_nonzero(x)) for x in jax.tree.leaves(sliced))
    assert masked._cache_size() == 1


def test_norms_without_a_mean_are_masked_too():
    """The tokens that enter the first block, which are normed here."""
    fields = {**FIELDS, "norm_type": "rms", "embed_norm": True}
    model, subnet = create_model("ViT", **fields), SUBNETS[0]
    images = np.ones((1, 8, 8, 1), np.float32)
    params = random_variables(model, images)["params"]
    with as_subnet(model, params, subnet.sizes(model.depth)) as own:
        masked, _ = model.apply({"params": own}, images, method="embed")
    sliced = {"params": slice_subnet(model, params, subnet)}
    expected, _ = subnet_of(model, subnet).apply(sliced, images, method="embed")
    np.testing.assert_allclose(masked[..., : subnet.width], expected, rtol=1e-6)
    assert not masked[..., subnet.width :].any()


def test_costs_are_those_of_the_models():
    model = create_model("ViT", **FIELDS, registers=1, layer_scale=0.1)
    for subnet in SUBNETS:
        found = trace_cost(subnet_of(model, subnet))
        assert subnet_cost(model, subnet) == (found.parameters, found.macs)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"norm_order": "post"}, "cannot have norm_order='post', where no block can be left out"),
        ({"positions": "sincos2d"}, "positions='sincos2d', whose vectors depend on the width"),
        ({"scan_layers": True}, "scan_layers=True"),
        ({"attention_type": "performer"}, "attention_type='performer'"),
        ({"keep_ratio": 0.7}, "keep_ratio=0.7"),
        ({"mlp": "swiglu"}, "blocks_0/mlp/fc1/bias of shape .48,. mixes several sizes"),
        ({"pool": "cls+mean"}, "head/kernel of shape .24, 3. mixes several sizes"),
    ],
)
def test_a_model_that_is_no_supernet_is_one_sentence(fields, sentence):
    model = create_model("ViT", **{**FIELDS, **fields})
    with pytest.raises(ValueError, match=sentence):
        check_space(model, SearchSpace((1,), (8,), (1,), (1.0,)))


def test_another_model_than_a_vit_is_one_sentence():
    with pytest.raises(ValueError, match="a supernet is a ViT, and ResNet is none; use a name"):
        Supernet(create_model("ResNet-50"))


@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        (
            {"widths": (8, 16)},
            "has width=16, and its supernet only 12; set --config.model.width=16",
        ),
        ({"depths": (4,)}, "has depth=4, and its supernet only 2"),
        ({"heads": (4,)}, "has heads=4, and its supernet only 3"),
        ({"mlp_ratios": (4.0,)}, "has mlp_width=32, and its supernet only 24"),
        ({"head_dim": 8}, "head_dim of 8 need a supernet with the same; it has 4"),
        ({"patch_sizes": (2, 4)}, "patches of several share no weights"),
    ],
)
def test_a_space_that_does_not_fit_is_one_sentence(space, sentence):
    sizes = {"depths": (1,), "widths": (8,), "heads": (1,), "mlp_ratios": (1.0,), **space}
    with pytest.raises(ValueError, match=sentence):
        check_space(create_model("ViT", **FIELDS), SearchSpace(**sizes))
