"""The compiled step: no waiting for the host, fresh dropout each step, the same on many devices."""

import contextlib
import io
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.folders import CONFIGS
from tests.support.processes import on_eight_devices
from vit_jax.cli import main
from vit_jax.config import load_config
from vit_jax.tasks import Loss, Task
from vit_jax.training.setup.build import build
from vit_jax.training.state import NonfiniteSteps, TrainState, zero_totals
from vit_jax.training.step import accumulated_gradient, if_good, make_train_step


def losses_on(devices, overrides):
    """On how many devices a parameter lies, and the summed losses of six steps."""
    experiment = build(
        load_config(str(CONFIGS / "digits.py"), [*overrides, ("mesh.data", str(devices))])
    )
    state, step = experiment.initial_state(), experiment.train_step()
    losses = []
    for batch in experiment.train_batches(0):
        state = step(state, batch)
        losses.append(float(state.totals["loss"]))
    return len(state.params["patch_embed"]["kernel"].sharding.device_set), losses


@pytest.fixture
def experiment(tiny_config):
    return build(tiny_config({"model.mlp_dropout": "0.5"}))


@pytest.mark.smoke
def test_no_step_waits_for_the_host(experiment):
    state, step = experiment.initial_state(), experiment.train_step()
    batches = experiment.train_batches(0)
    state = step(state, next(batches))  # compiles, and reads constants
    with jax.transfer_guard_device_to_host("disallow"):
        for batch in batches:
            state = step(state, batch)
    assert int(state.step) == experiment.total_steps


def test_the_old_state_is_used_up(experiment):
    state, step = experiment.initial_state(), experiment.train_step()
    old = jax.tree.leaves(state.params)[0]
    step(state, next(experiment.train_batches(0)))
    assert old.is_deleted()


def test_dropout_differs_from_step_to_step(experiment):
    """Two steps on one batch at learning rate 0: only the random numbers differ."""
    state, step = experiment.initial_state(), experiment.train_step()
    batch = next(experiment.train_batches(0))
    # With its kernels at zero, as they begin, the head would hide what dropout does.
    noise = np.random.RandomState(0)
    head = jax.tree.map(lambda leaf: leaf + noise.normal(size=leaf.shape), state.params["head"])
    state = state.replace(params={**state.params, "head": head})
    state = step(state, batch)  # the first learning rate of a warm-up is 0
    first = float(state.totals["loss"])
    state = step(state, batch)
    assert float(state.totals["loss"]) - first != pytest.approx(first, rel=1e-6)


def test_the_totals_count_steps_images_and_loss(experiment):
    state, step = experiment.initial_state(), experiment.train_step()
    for batch in experiment.train_batches(0):
        state = step(state, batch)
    totals = jax.device_get(state.totals)
    assert (totals["steps"], totals["weight"]) == (6, 6 * 32)
    # The head begins at zero, so the first loss is ln 10, and six tiny steps change little.
    assert totals["loss"] / totals["weight"] == pytest.approx(np.log(10), abs=0.1)


def test_four_devices_take_the_steps_of_one(overrides):
    changes = {"model.mlp_dropout": "0.1", "optimizer.learning_rate": "0.01"}
    # Mixing takes an image's partner from the whole batch, whatever device it lies on.
    changes = overrides({**changes, "augment.mixup": "0.8", "augment.cutmix": "1.0"})
    one, four = (on_eight_devices(losses_on, count, changes) for count in (1, 4))
    assert (one[0], four[0]) == (1, 4)
    np.testing.assert_allclose(one[1], four[1], rtol=1e-5)


def test_a_batch_that_does_not_divide_is_refused_with_the_nearest_sizes(overrides, tmp_path):
    changes = overrides({"batch_size": "10", "mesh.data": "4"})
    code, told = on_eight_devices(train, changes, str(tmp_path / "run"))
    assert code == 2
    assert "batch_size = 10 does not divide over 4 devices" in told
    assert "8 or 12" in told and "Traceback" not in told


def train(overrides, workdir):
    """The exit code of a training, and what it wrote to the error stream."""
    flags = [f"--config.{key}={value}" for key, value in overrides]
    with contextlib.redirect_stderr(io.StringIO()) as told:
        code = main(["train", f"--config={CONFIGS / 'digits.py'}", f"--workdir={workdir}", *flags])
    return code, told.getvalue()


# ----------------------------------------------------------- accumulation, average, bad steps

PLAIN = SimpleNamespace(normalize=lambda images: images)  # images as they are


class Linear(Task):
    """A task whose gradient is the mean of the images' only pixel."""

    def loss(self, variables, batch, rng, *, train):
        values = batch["image"].reshape(len(batch["image"]))
        return Loss(jnp.sum(values * variables["params"]["w"]), jnp.float32(len(values)), {}, {})


class Root(Linear):
    """Its loss is finite where its gradient is not: the root of w at 0."""

    def loss(self, variables, batch, rng, *, train):
        return Loss(jnp.sqrt(variables["params"]["w"]), jnp.float32(1.0), {}, {})


class Draws(Linear):
    """Its metrics are a random number of the part, and its square."""

    def loss(self, variables, batch, rng, *, train):
        drawn = jax.random.uniform(rng)
        metrics = {"drawn": drawn, "square": drawn**2}
        return Loss(0 * variables["params"]["w"], jnp.float32(1.0), metrics, {})


def state_of(optimizer, w=0.0, average=False):
    params = {"w": jnp.float32(w)}
    return TrainState(
        step=jnp.int32(0),
        params=params,
        ema_params=jax.tree.map(jnp.copy, params) if average else None,
        opt_state=optimizer.init(params),
        model_state={},
        nonfinite_steps=NonfiniteSteps.none(),
        totals=zero_totals(()),
    )


def steps_of(optimizer, batches, task=None, w=0.0, **settings):
    """The states after each step of a task of one parameter."""
    state = state_of(optimizer, w, average="ema_decay" in settings)
    shardings = jax.tree.map(lambda x: x.sharding, state)
    step = make_train_step(task or Linear(), optimizer, PLAIN, shardings, seed=0, **settings)
    states = []
    for values in batches:
        batch = {"image": jnp.array(values, jnp.float32).reshape(-1, 1, 1, 1)}
        state = step(state, batch)
        states.append(jax.device_get(state))
    return states


def test_parts_of_a_batch_give_the_gradient_of_the_whole(tiny_config):
    """Batches of 32 as 1 x 32, 4 x 8 and 32 x 1; the gradient is a mean, not a sum."""
    experiment = build(tiny_config({"augment.preset": "none"}))
    state = experiment.initial_state()
    noise = np.random.RandomState(0)
    params = jax.tree.map(lambda x: x + 0.1 * noise.normal(size=x.shape), state.params)
    batch = next(experiment.train_batches(0))
    found = []
    for parts in (1, 4, 32):
        gradient, sums, _ = jax.jit(accumulated_gradient, static_argnums=(0, 1, 5))(
            experiment.task,
            experiment.preprocessing,
            state.replace(params=params),
            batch,
            jax.random.key(0),
            parts,
        )
        assert float(sums["weight"]) == 32
        found.append((gradient, sums))
    for other in found[1:]:
        # Of numbers that nearly cancel, the last bits are noise: compared with the largest.
        for a, b in zip(jax.tree.leaves(found[0]), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6 * max(1, float(abs(a).max())))


def test_parts_of_a_batch_draw_random_numbers_of_their_own():
    """The variance of four equal numbers would be 0; that of uniform ones is 1/12 in the mean."""
    state = state_of(optax.sgd(1.0)).replace(totals=zero_totals(("drawn", "square")))
    batch = {"image": jnp.zeros((8, 1, 1, 1))}
    _, sums, _ = accumulated_gradient(Draws(), PLAIN, state, batch, jax.random.key(0), 4)
    assert float(sums["square"] / 4 - (sums["drawn"] / 4) ** 2) > 0.01


def test_the_gradient_is_clipped_once_after_it_is_averaged():
    """Parts with gradients 10 and -9.8: their mean, 0.1, is below the limit of 1."""
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0))
    [state] = steps_of(optimizer, [[10.0, -9.8]], accumulate_steps=2)
    assert state.params["w"] == pytest.approx(-0.1, abs=1e-6)
    assert state.totals["grad_norm"] == pytest.approx(0.1, abs=1e-6)  # before clipping


def test_the_average_follows_its_warm_up():
    """Decays (1 + t) / (10 + t) at updates 1, 2, 3: 2/11, 3/12, 4/13."""
    states = steps_of(optax.sgd(1.0), [[-1.0]] * 3, ema_decay=0.999)  # w is 1, 2, 3
    average = 0.0
    for state, w, decay in zip(states, (1.0, 2.0, 3.0), (2 / 11, 3 / 12, 4 / 13), strict=True):
        assert state.params["w"] == w
        average = decay * average + (1 - decay) * w
        assert state.ema_params["w"] == pytest.approx(average, rel=1e-6)


def test_an_average_of_decay_zero_is_the_parameters_and_of_decay_one_the_first_ones():
    batches = [[-1.0]] * 3
    zero, one = (
        steps_of(optax.sgd(1.0), batches, w=5.0, ema_decay=decay)[-1] for decay in (0.0, 1.0)
    )
    assert (zero.params["w"], zero.ema_params["w"]) == (8.0, 8.0)
    assert (one.params["w"], one.ema_params["w"]) == (8.0, 5.0)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_step_without_a_finite_loss_changes_nothing(poison):
    optimizer = optax.adamw(0.1)
    good, bad, again = steps_of(
        optimizer, [[1.0, 2.0], [1.0, poison], [1.0, 2.0]], w=1.0, ema_decay=0.9
    )
    for name in ("params", "ema_params", "opt_state", "totals"):
        same = jax.tree.map(np.array_equal, getattr(good, name), getattr(bad, name))
        assert all(jax.tree.leaves(same)), name
    assert (
        bad.step,
        bad.nonfinite_steps.total,
        bad.nonfinite_steps.in_row,
        bad.nonfinite_steps.last,
    ) == (2, 1, 1, 2)
    assert bad.nonfinite_steps.CAUSES[bad.nonfinite_steps.cause] == "the loss"
    assert (
        again.nonfinite_steps.total,
        again.nonfinite_steps.in_row,
        again.nonfinite_steps.longest,
    ) == (1, 0, 1)
    assert again.updates == 2 and again.params["w"] != good.params["w"]


def test_the_gradient_of_what_is_frozen_counts_neither_in_the_norm_nor_as_bad():
    [state] = steps_of(
        optax.sgd(1.0), [[0.0]], task=Root(), w=0.0, trainable={"w": np.array(False)}
    )
    assert (state.nonfinite_steps.total, state.totals["grad_norm"]) == (0, 0.0)


def test_a_finite_loss_with_a_gradient_that_is_not_is_a_bad_step_too():
    [state] = steps_of(optax.sgd(1.0), [[0.0]], task=Root(), w=0.0)
    assert state.params["w"] == 0.0
    assert state.nonfinite_steps.CAUSES[state.nonfinite_steps.cause] == "the gradient"


@pytest.mark.parametrize("branch", [True, False])
@pytest.mark.parametrize("good", [True, False])
def test_a_bad_step_keeps_what_was_there_by_branch_or_selection(branch, good):
    kept = {"w": jnp.array([1.0, -0.0, jnp.inf]), "count": jnp.int32(3)}

    def update(kept):
        return {"w": kept["w"] * jnp.nan, "count": kept["count"] + 1}

    step = jax.jit(lambda good, kept: if_good(good, update, kept, branch=branch))
    changed = step(jnp.bool_(good), kept)
    assert changed["count"] == (4 if good else 3)
    expected = np.full(3, np.nan) if good else kept["w"]
    np.testing.assert_array_equal(changed["w"], expected)
