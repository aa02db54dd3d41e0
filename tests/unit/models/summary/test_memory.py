"""The estimate of memory against XLA's own analysis of the compiled program, and by hand."""

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen as nn

from vit_jax.models import create_model
from vit_jax.models.inputs import trace_init
from vit_jax.models.summary.memory import memory

TINY = {"image_size": 64, "patch_size": 8, "num_classes": 10}
CASES = {
    "ViT": ("ViT", {**TINY, "width": 96, "depth": 2, "heads": 3, "mlp_width": 384}, 16),
    "many tokens": ("ViT", {**TINY, "patch_size": 4, "width": 64, "depth": 4, "heads": 4}, 8),
    "wide": ("ViT", {**TINY, "width": 256, "depth": 2, "heads": 4}, 32),
    "dropout": ("CIFAR-ViT-S/4", {"depth": 2}, 16),
}
# jax 0.12 reads the exponential in GELU's gradient in two places, which the estimate then holds and
# XLA does not.
TOLERANCE = 0.15 if jax.__version_info__ < (0, 12) else 0.2


def compiled_bytes(model, batch, train):
    """What the compiled program says it needs: arguments, results that share nothing, the rest."""
    images = jnp.zeros((batch, *[model.image_size] * 2, model.in_channels))
    variables = trace_init(model, images)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))

    def step(variables, opt_state, images):
        def loss(params):
            rngs = {"dropout": jax.random.key(0)}
            logits = model.apply({"params": params}, images, train=True, rngs=rngs)
            labels = jnp.zeros(batch, jnp.int32)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        params = variables["params"]
        updates, opt_state = optimizer.update(jax.grad(loss)(params), opt_state, params)
        return {"params": optax.apply_updates(params, updates)}, opt_state

    if train:
        opt_state = jax.eval_shape(optimizer.init, variables["params"])
        program = jax.jit(step, donate_argnums=(0, 1)).lower(variables, opt_state, images)
    else:
        program = jax.jit(model.apply).lower(variables, images)
    found = program.compile().memory_analysis()
    of_results = found.output_size_in_bytes - found.alias_size_in_bytes
    return found.argument_size_in_bytes + of_results + found.temp_size_in_bytes


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("ViT", "dropout") else pytest.mark.slow)
        for name in CASES
    ],
)
def test_a_training_step_takes_about_what_the_compiled_one_takes(name):
    model_name, fields, batch = CASES[name]
    model = create_model(model_name, **fields)
    expected = compiled_bytes(model, batch, train=True)
    assert memory(model, batch, train=True).total == pytest.approx(expected, rel=TOLERANCE)


def test_rematerialisation_holds_less():
    """XLA undoes it on a CPU, so there is nothing to compare with: blocks keep what enters them."""
    fields = {**TINY, "width": 96, "depth": 6, "heads": 3}
    plain, full = (
        memory(create_model("ViT", **fields, remat=remat), 16, train=True)
        for remat in ("none", "full")
    )
    assert full.temporaries < plain.temporaries / 2
    assert full.attention <= plain.attention / 5


def test_parameters_moments_and_images_are_counted_by_hand():
    """ViT-B/16: 86,567,656 numbers of 4 bytes, two moments for each."""
    parts = memory(create_model("ViT-B/16"), 2, train=True)
    assert parts.parameters == 4 * 86_567_656 == parts.gradients
    assert parts.optimizer == 8 * 86_567_656
    assert parts.images == 2 * 224 * 224 * 3 * 4
    inference = memory(create_model("ViT-B/16"), 2)
    assert inference.optimizer == inference.gradients == 0
    assert inference.parameters == parts.parameters


def test_attention_matrices_are_those_of_every_block():
    """Batch 32: 2 blocks x 12 heads x 197 x 197 numbers, 119 MB."""
    of_attention = memory(create_model("ViT-B/16", depth=2), 32, train=True).attention
    assert 2 * 32 * 12 * 197 * 197 * 4 <= of_attention < 2 * 4 * 32 * 12 * 197 * 197 * 4


def test_what_nobody_reads_any_more_is_not_held():
    """A chain of products needs two arrays at once, however long it is."""

    class Chain(nn.Module):
        image_size: int = 4
        in_channels: int = 2

        @nn.compact
        def __call__(self, x):
            x = x.reshape(len(x), -1)
            for _ in range(6):
                x = nn.Dense(32, use_bias=False)(x)
            return x

    assert memory(Chain(), 5).temporaries == 2 * 5 * 32 * 4
