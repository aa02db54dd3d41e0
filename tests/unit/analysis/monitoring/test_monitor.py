"""What is seen inside a training model, against arithmetic, optax and the training itself."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.conftest import TINY
from vit_jax.analysis.attention.compute import compute_attention, entropy, mean_distance
from vit_jax.analysis.monitoring.monitor import (
    IMAGES,
    Monitor,
    block_norms,
    collapse,
    effective_rank,
)
from vit_jax.config import load_config
from vit_jax.models.description import Blocks, Role, describe
from vit_jax.training.setup.build import build

SGD = {
    "optimizer.name": "sgd",
    "optimizer.momentum": "0",
    "optimizer.weight_decay": "0",
    "optimizer.clip": "0",
    "optimizer.learning_rate": "0.25",
    "schedule.name": "constant",
    "schedule.warmup": "0",
}


def start(config):
    """The experiment, its watcher, the state before the first step, and the first batch."""
    experiment = build(config)
    batch = next(experiment.train_batches(0))
    return experiment, Monitor(experiment), experiment.initial_state(), batch


@pytest.fixture(scope="module")
def vit(data_dir):
    """What `start` gives, for two layers on 16 patches and a class token."""
    changes = {
        **{**TINY, "data.dir": data_dir, "model.depth": "2", "model.patch_size": "4"},
        **{"model.pool": "cls", "model.drop_path": "0.2", "augment.mixup": "0.5"},
        **{"duration": "100 steps", "schedule.warmup": "30 steps"},
    }
    return start(load_config("configs/digits.py", list(changes.items())))


def of_layers(numbers, name):
    """The numbers of one name, by layer."""
    found = {key.split("/", 1)[1]: x for key, x in numbers.items() if key.split("/")[0] == name}
    assert found, name
    return found


def as_floats(norms):
    return {layer: float(norm) for layer, norm in norms.items()}


def root_of_squares(numbers):
    return np.sqrt(sum(number**2 for number in numbers.values()))


# ----------------------------------------------------------------------------------- effective rank


def test_the_effective_rank_of_directions_alike_is_their_number():
    assert effective_rank(np.eye(7)) == pytest.approx(7)
    assert effective_rank(3e20 * np.eye(5, 9)) == pytest.approx(5)
    rotation, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(12, 12)))
    assert effective_rank(rotation[:, :4]) == pytest.approx(4)


def test_the_effective_rank_of_rows_that_are_multiples_of_one_is_one():
    row = np.random.default_rng(0).normal(size=(1, 768)).astype(np.float32)
    rows = np.arange(1, 1001, dtype=np.float32)[:, None] @ row
    assert effective_rank(rows) == pytest.approx(1, abs=2e-3)  # rounded in float32


def test_the_effective_rank_is_the_exponential_of_the_entropy_of_the_singular_values():
    """Of 3 and 1 the shares are 3/4 and 1/4, whose entropy is 0.5623 nats (Roy & Vetterli 2007)."""
    matrix = np.diag([3.0, 1.0])
    assert effective_rank(matrix) == pytest.approx(1.7548, abs=1e-4)
    assert effective_rank(np.pad(matrix, ((0, 5), (0, 9)))) == pytest.approx(1.7548, abs=1e-4)


def test_zeros_and_what_is_not_finite_have_no_effective_rank():
    assert np.isnan(effective_rank(np.zeros((3, 3))))
    assert np.isnan(effective_rank(np.full((3, 3), np.inf)))


# -------------------------------------------------------------------------------------------- norms


def test_norms_are_of_the_blocks_that_a_model_declares_stacked_or_not():
    """3, 4 have norm 5 and 6, 8 norm 10; a stage's other parts are named by two names."""
    kernel = {"kernel": Role.LINEAR}
    roles = {"level_*": {"enter": kernel, "trunk_*": Blocks(kernel)}, "head": kernel}
    numbers = {
        "enter": {"kernel": jnp.array([[2.0]])},
        "trunk": {"kernel": jnp.array([[3.0, 4.0], [6.0, 8.0]])},
    }
    tree = {"level_0": numbers, "head": {"kernel": jnp.array([[1.0]])}}
    norms = as_floats(block_norms(tree, describe(tree, roles)))
    blocks = {"level_0/trunk_0": 5.0, "level_0/trunk_1": 10.0}
    assert norms == {**blocks, "level_0/enter": 2.0, "head": 1.0}


# ----------------------------------------------------------------------------------------- collapse


def test_attention_that_is_uniform_in_every_head_has_collapsed():
    uniform = entropy(np.full((2, 3, 50, 50), 1 / 50))
    np.testing.assert_allclose(uniform, np.log(50))
    assert collapse(uniform, np.log(50)) == "uniform"


def test_attention_to_a_single_key_in_every_head_has_collapsed():
    assert collapse(entropy(np.tile(np.eye(50), (2, 3, 1, 1))), np.log(50)) == "single"


def test_one_head_that_is_well_keeps_its_layer_well():
    assert collapse(np.array([0.0, 0.5 * np.log(50)]), np.log(50)) is None
    assert collapse(np.array([np.log(50), 0.5 * np.log(50)]), np.log(50)) is None
    assert collapse(np.array([np.log(50), 0.0]), np.log(50)) is None


def test_a_query_of_a_single_key_has_no_choice_and_is_not_told():
    assert collapse(np.array([0.0, 0.0]), np.log(1)) is None


@pytest.mark.parametrize(("factor", "kind"), [(0.0, "almost uniformly"), (300.0, "single key")])
def test_a_collapse_is_a_warning_that_names_the_layer_with_numbers(vit, factor, kind):
    """Queries and keys of the second of two layers times 0 or 300, so their logits times 90,000."""
    _, watcher, state, batch = vit
    assert watcher(50, state, batch).warnings == {}
    kernel = state.params["blocks_1"]["attn"]["qkv"]["kernel"]
    broken = jax.tree.map(lambda x: x, state.params)
    scale = np.array([factor, factor, 1], np.float32).reshape(1, 3, 1, 1)
    scaled = jax.device_put(np.asarray(kernel) * scale, kernel.sharding)
    broken["blocks_1"]["attn"]["qkv"]["kernel"] = scaled
    numbers, warnings = watcher(50, state.replace(params=broken), batch)
    assert list(warnings) == ["blocks_1"]
    said = warnings["blocks_1"]
    assert "attention of blocks_1 has collapsed by step 50" in said and kind in said
    assert "all its 2 heads" in said and "2.833" in said  # log 17
    assert "optimizer.learning_rate" in said
    share = numbers["entropy/blocks_1"] / np.log(17)
    assert share == pytest.approx(1, abs=1e-5) if factor == 0 else share < 0.05


def test_uniform_attention_is_no_warning_at_the_start(vit):
    """Before the warm-up has ended, or a tenth of the run is done."""
    _, watcher, state, batch = vit
    state = state.replace(params=jax.tree.map(jnp.zeros_like, state.params))
    assert watcher(29, state, batch).warnings == {}
    assert list(watcher(30, state, batch).warnings) == ["blocks_0", "blocks_1"]


# --------------------------------------------------------------------------------- what it measures


def test_entropy_and_distance_are_those_of_the_whole_weights(vit):
    """As `attention.py` computes them in float64, on the host, from all weights."""
    experiment, watcher, state, batch = vit
    numbers, _ = watcher(0, state, batch)
    images = experiment.preprocessing.normalize(batch["image"][:IMAGES])
    seen = compute_attention(experiment.model, state.variables(), images)
    for layer, weights in enumerate(seen.weights):
        entropies = entropy(weights)
        distances = mean_distance(weights, seen.grid, seen.prefix, seen.patch_size)
        for name, heads in (("entropy", entropies), ("distance", distances)):
            for end, reduce in (("", np.mean), ("_min", np.min), ("_max", np.max)):
                number = numbers[f"{name}{end}/blocks_{layer}"]
                assert number == pytest.approx(reduce(heads), rel=1e-5), (name, end)
        assert numbers[f"entropy_uniform/blocks_{layer}"] == pytest.approx(np.log(17))


def test_ranks_are_of_what_the_blocks_put_out(vit):
    experiment, watcher, state, batch = vit
    images = experiment.preprocessing.normalize(batch["image"][:IMAGES])
    _, kept = jax.jit(lambda v, x: experiment.model.apply(v, x, mutable=["intermediates"]))(
        state.variables(), images
    )
    [tokens] = kept["intermediates"]["blocks_0"]["out"]
    values = np.linalg.svd(tokens.reshape(-1, 8), compute_uv=False)
    shares = values / values.sum()
    expected = np.exp(-(shares * np.log(shares)).sum())
    assert watcher(0, state, batch).numbers["rank/blocks_0"] == pytest.approx(expected, rel=1e-4)


def test_norms_of_blocks_make_up_the_global_norm_and_a_stack_has_those_of_its_blocks():
    random = np.random.default_rng(0)
    blocks = {
        f"blocks_{i}": {"mlp": {"fc1": {"kernel": jnp.array(random.normal(size=(4, 3)) * 10**i)}}}
        for i in range(3)
    }
    rest = {"head": {"bias": jnp.array([3.0, 4.0])}, "cls_token": jnp.full((1, 1, 4), 0.5)}
    norms = block_norms({**blocks, **rest})
    assert norms["head"] == pytest.approx(5) and norms["cls_token"] == pytest.approx(1)
    assert root_of_squares(norms) == pytest.approx(optax.global_norm({**blocks, **rest}))
    stacked = {"blocks": jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks.values()), **rest}
    assert as_floats(block_norms(stacked)) == pytest.approx(as_floats(norms))


def test_blocks_of_stages_are_named_by_their_paths():
    one = {"kernel": jnp.ones(4)}
    stages = {"stages_0": {"blocks_0": one}, "stages_1": {"downsample": one, "blocks_0": one}}
    assert dict(block_norms({**stages, "head": one})) == {
        "stages_0/blocks_0": 2,
        "stages_1/downsample": 2,
        "stages_1/blocks_0": 2,
        "head": 2,
    }


def test_the_update_is_the_one_that_the_step_then_makes(vit):
    """By AdamW with clipping, dropped paths and MixUp, from a state that has taken steps."""
    experiment, watcher, _, batch = vit
    state, step = experiment.initial_state(), experiment.train_step()
    for _ in range(4):
        state = step(state, batch)
    numbers, _ = watcher(4, state, batch)
    before = jax.device_get(state.params)
    after = jax.device_get(step(state, batch).params)
    norms_of = jax.jit(block_norms)
    moved = as_floats(norms_of(jax.tree.map(np.subtract, after, before)))
    assert of_layers(numbers, "update_norm") == pytest.approx(moved, rel=1e-4)
    sizes = as_floats(norms_of(before))
    ratios = {layer: moved[layer] / sizes[layer] for layer in moved}
    assert of_layers(numbers, "update_ratio") == pytest.approx(ratios, rel=1e-4)


STACKED = {
    **{"model.scan_layers": "true", "model.depth": "2", "accumulate_steps": "2"},
    **{"augment.cutmix": "1", "model.mlp_dropout": "0.1"},
    "optimizer.lr_multipliers": "(('patch_embed/.*', 0),)",
}


@pytest.mark.parametrize("kind", [pytest.param("stacked", marks=pytest.mark.slow), "distillation"])
def test_gradients_are_those_of_the_step_that_follows(tiny_config, finished_run, kind):
    """The step counts the norm of the whole; plain descent goes the rate times that."""
    teacher = {"distillation.teacher": finished_run.path, "distillation.kind": "soft"}
    changes = {"stacked": STACKED, "distillation": teacher}[kind]
    experiment, watcher, state, batch = start(tiny_config({**SGD, **changes}))
    step = experiment.train_step()
    for _ in range(2):
        state = step(state, batch)
    numbers, _ = watcher(2, state, batch)
    before = float(state.totals["grad_norm"])
    gradients = of_layers(numbers, "gradient_norm")
    norm = float(step(state, batch).totals["grad_norm"]) - before
    assert root_of_squares(gradients) == pytest.approx(norm, rel=1e-4)
    expected = {layer: 0.25 * gradient for layer, gradient in gradients.items()}
    assert of_layers(numbers, "update_norm") == pytest.approx(expected, rel=1e-5)
    if kind == "stacked":
        assert {"blocks_0", "blocks_1"} <= gradients.keys() and gradients["blocks_1"] > 0
        assert gradients["patch_embed"] == 0  # frozen
        assert "entropy/blocks_1" in numbers and "rank/blocks_1" in numbers


# ----------------------------------------------------------------------------------- other networks

SWIN = {
    **{"model.name": "Swin", "model.width": "8", "model.depths": "(1, 1)", "model.heads": "(2, 2)"},
    **{"model.window": "2", "model.patch_size": "4", "model.image_size": "16"},
}
PVT = {
    **{"model.name": "PVT", "model.widths": "(4, 8)", "model.depths": "(1, 1)"},
    **{"model.patch_sizes": "(4, 2)", "model.reductions": "(2, 1)", "model.heads": "(1, 2)"},
    **{"model.mlp_ratios": "(2, 2)", "model.image_size": "16"},
}
RESNET = {
    **{"model.name": "ResNet", "model.depths": "(1, 1)", "model.widths": "(4, 8)"},
    **{"model.stem_width": "4", "model.image_size": "16"},
}


def of_family(overrides, changes):
    """A configuration without the fields that only a ViT has."""
    kept = [(key, value) for key, value in overrides({}) if not key.startswith("model.")]
    return load_config("configs/digits.py", [*kept, *changes.items(), ("model.in_channels", "1")])


@pytest.mark.parametrize(
    "family", [pytest.param(SWIN, id="swin"), pytest.param(PVT, id="pvt", marks=pytest.mark.slow)]
)
def test_windows_and_reduced_keys_have_their_own_distances(overrides, family):
    """As `Layer` computes them in float64, on the host, from all weights."""
    experiment, watcher, state, batch = start(of_family(overrides, family))
    numbers, warnings = watcher(0, state, batch)
    images = experiment.preprocessing.normalize(batch["image"][:IMAGES])
    blocks = ["stages_0/blocks_0", "stages_1/blocks_0"]
    assert sorted(of_layers(numbers, "entropy")) == sorted(of_layers(numbers, "rank")) == blocks
    for block, layer in zip(
        blocks, compute_attention(experiment.model, state.variables(), images).layers, strict=True
    ):
        expected = {
            "entropy": layer.entropy().mean(),
            "distance": layer.mean_distance().mean(),
            "entropy_uniform": layer.uniform().entropy().mean(),
        }
        for name, number in expected.items():
            assert numbers[f"{name}/{block}"] == pytest.approx(number, rel=1e-5), name
    assert set(blocks) < of_layers(numbers, "gradient_norm").keys() and warnings == {}


@pytest.mark.slow
def test_a_network_without_attention_has_ranks_and_norms(overrides):
    """With running statistics, which a look leaves as they are."""
    _, watcher, state, batch = start(of_family(overrides, RESNET))
    before = jax.device_get(state)
    numbers, warnings = watcher(50, state, batch)
    jax.tree.map(np.testing.assert_array_equal, before, jax.device_get(state))
    assert "batch_stats" in before.model_state
    assert of_layers(numbers, "rank").keys() == {"stages_0/blocks_0", "stages_1/blocks_0"}
    assert of_layers(numbers, "gradient_norm")["stages_1/blocks_0"] > 0
    assert not any(name.startswith("entropy") for name in numbers) and warnings == {}
