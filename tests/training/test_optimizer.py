import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vit_jax.config import default_config
from vit_jax.models import create_model
from vit_jax.training.optimizer import decay_mask, make_optimizer, make_schedule

EVERY_OPTION = {
    "image_size": 16,
    "patch_size": 8,
    "width": 16,
    "depth": 2,
    "heads": 2,
    "num_classes": 3,
    "registers": 2,
    "layer_scale": 0.1,
    "qk_norm": True,
    "embed_norm": True,
    "representation_size": 8,
}


def params_of(**fields):
    model = create_model("ViT-Ti/16", **{**EVERY_OPTION, **fields})
    return model.init(jax.random.key(0), jnp.zeros((1, 16, 16, 3)))["params"]


def names(tree):
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


@pytest.mark.parametrize("pool", ["cls", "map"])
def test_decay_shrinks_kernels_and_nothing_else(pool):
    config = default_config()
    config.optimizer.learning_rate, config.optimizer.weight_decay = 1.0, 0.1
    optimizer = make_optimizer(config, optax.constant_schedule(1.0))
    params = jax.tree.map(jnp.ones_like, params_of(pool=pool, class_token=True))
    zeros = jax.tree.map(jnp.zeros_like, params)
    updates, _ = optimizer.update(zeros, optimizer.init(params), params)
    after = names(optax.apply_updates(params, updates))
    for name, leaf in after.items():
        expected = 0.9 if name.endswith("/kernel") else 1.0
        np.testing.assert_allclose(leaf, expected, rtol=1e-6, err_msg=name)
    undecayed = {name.split("/")[-1] for name, leaf in after.items() if leaf.max() == 1}
    wanted = {"bias", "scale", "gamma", "cls_token", "reg_tokens", "pos_embed"}
    assert wanted | ({"probe"} if pool == "map" else set()) == undecayed


def test_every_matrix_is_decayed():
    mask = names(decay_mask(params_of()))
    wanted = {"patch_embed/kernel", "head/kernel", "pre_logits/kernel", "blocks_1/attn/qkv/kernel"}
    assert wanted <= {name for name, decayed in mask.items() if decayed}


def test_the_schedule_is_linear_warmup_then_cosine():
    reference = json.loads((Path(__file__).parent / "data/lr_warmup5_total20.json").read_text())
    config = default_config()
    config.optimizer.learning_rate = reference["peak"]
    schedule = make_schedule(config, warmup_steps=5, total_steps=20)
    for update, expected in reference["lr_used_by_update"].items():
        assert float(schedule(int(update))) == pytest.approx(expected, abs=1e-6)


def test_the_schedule_without_warmup_starts_at_the_peak_and_ends_where_told():
    config = default_config()
    config.optimizer.learning_rate, config.schedule.end = 0.5, 0.1
    schedule = make_schedule(config, warmup_steps=0, total_steps=10)
    assert float(schedule(0)) == pytest.approx(0.5)
    assert float(schedule(5)) == pytest.approx(0.5 * 0.55)  # halfway: the mean of 1 and 0.1
    assert float(schedule(10)) == pytest.approx(0.05)


def test_the_gradient_is_clipped_by_its_global_norm():
    """With one Adam step from zero moments and a huge epsilon, the update is proportional to the
    clipped gradient: 3, 4 has norm 5 and becomes 0.6, 0.8."""
    config = default_config()
    config.optimizer.eps, config.optimizer.weight_decay = 1e6, 0.0
    params = {"a": {"kernel": jnp.zeros(1)}, "b": {"kernel": jnp.zeros(1)}}
    gradient = {"a": {"kernel": jnp.array([3.0])}, "b": {"kernel": jnp.array([4.0])}}
    for clip, expected in ((1.0, (0.6, 0.8)), (10.0, (3.0, 4.0)), (0.0, (3.0, 4.0))):
        config.optimizer.clip = clip
        optimizer = make_optimizer(config, optax.constant_schedule(1.0))
        updates, _ = optimizer.update(gradient, optimizer.init(params), params)
        got = (-1e6 * float(updates["a"]["kernel"][0]), -1e6 * float(updates["b"]["kernel"][0]))
        assert got == pytest.approx(expected, rel=1e-4)
