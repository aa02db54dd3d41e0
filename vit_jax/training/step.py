"""Training step and evaluation step, each a single compiled function.

Images arrive as uint8 and are normalised here, on the device. The training step donates the old
state, so that parameters and optimizer moments are stored only once.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float

from vit_jax.data import Preprocessing
from vit_jax.evaluation.base import Evaluator
from vit_jax.tasks.base import Batch, Task
from vit_jax.training.distributed.sharding import replicated
from vit_jax.training.state import TrainState, random_keys


def make_train_step(
    task: Task,
    optimizer: optax.GradientTransformation,
    preprocessing: Preprocessing,
    shardings: TrainState,
    *,
    seed: int,
    accumulate_steps: int = 1,
    ema_decay: float = 0.0,
    trainable: Any = None,
    frozen: Any = None,
) -> Callable[[TrainState, Batch], TrainState]:
    """Return a function from a state and a batch to the next state; it donates the old state.

    Args:
        shardings: of each array of the state.
        seed: of dropout and mixing.
        accumulate_steps: parts of the batch that are computed one after the other; only one
            part needs memory at a time.
        ema_decay: decay of the parameter average; see `ema_decay_at`. 0 disables it.
        trainable: of `trainable_mask`. The gradient of frozen parameters counts as zero: it
            is not part of the norm, cannot make a step nonfinite, and is not computed. None: no
            parameter is frozen.
        frozen: arrays on the devices that the task uses in every step, such as a teacher's
            parameters. They are an argument of the program: closed over, they would be compiled
            and cached with it. None if there are none.
    """

    gradient_of = make_gradient(
        task, preprocessing, seed=seed, accumulate_steps=accumulate_steps, trainable=trainable
    )
    on_cpu = all(device.platform == "cpu" for device in shardings.step.device_set)

    def train_step(state: TrainState, batch: Batch, frozen: Any = None) -> TrainState:
        gradient, sums, model_state = gradient_of(state, batch, frozen)
        grad_norm = optax.global_norm(gradient)
        nonfinite_steps = state.nonfinite_steps.after(state.step + 1, sums["loss"], grad_norm)
        good = nonfinite_steps.in_row == 0

        def update(kept: dict[str, Any]) -> dict[str, Any]:
            updates, opt_state = optimizer.update(gradient, kept["opt_state"], kept["params"])
            params = optax.apply_updates(kept["params"], updates)
            ema_params = kept["ema_params"]
            if ema_params is not None:
                decay = ema_decay_at(ema_decay, state.updates + 1)
                ema_params = optax.incremental_update(params, ema_params, 1.0 - decay)
            news = {"steps": 1.0, "grad_norm": grad_norm, **sums}
            new = task.after_update(
                state.replace(step=state.step + 1, params=params, model_state=model_state)
            )
            return {
                "params": new.params,
                "ema_params": ema_params,
                "opt_state": opt_state,
                "model_state": new.model_state,
                "totals": {name: total + news[name] for name, total in kept["totals"].items()},
            }

        names = ("params", "ema_params", "opt_state", "model_state", "totals")
        kept = {name: getattr(state, name) for name in names}
        changed = if_good(good, update, kept, branch=on_cpu)
        return state.replace(step=state.step + 1, nonfinite_steps=nonfinite_steps, **changed)

    compiled = jax.jit(train_step, donate_argnums=0, out_shardings=shardings)
    return compiled if frozen is None else functools.partial(compiled, frozen=frozen)


def if_good(good: Bool[Array, ""], update: Callable[[Any], Any], kept: Any, *, branch: bool) -> Any:
    """Return `update(kept)` for a good step, and `kept` unchanged for a skipped one.

    Args:
        branch: compute one of the two, rather than both and select every element. On a CPU that
            is 0.91 of a step's time where parameters are many for a small batch (ViT-Ti/16, batch
            8), and within the noise where they are few. On an accelerator a branch makes the host
            wait until `good` is known.
    """
    if branch:
        return jax.lax.cond(good, update, lambda kept: kept, kept)
    return jax.tree.map(lambda new, old: jnp.where(good, new, old), update(kept), kept)


def make_gradient(
    task: Task,
    preprocessing: Preprocessing,
    *,
    seed: int,
    accumulate_steps: int = 1,
    trainable: Any = None,
) -> Callable[..., tuple[Any, dict[str, Float[Array, ""]], dict[str, Any]]]:
    """Return the gradient part of the training step, not compiled: see `accumulated_gradient`.

    The function takes a state, a batch and the frozen arrays of the task; its random numbers are
    those of the step that follows the state. For the arguments see `make_train_step`.
    """

    def gradient_of(state: TrainState, batch: Batch, frozen: Any = None):
        rng = jax.random.fold_in(random_keys(seed)[1], state.step)
        gradient, sums, model_state = accumulated_gradient(
            task.reading(frozen), preprocessing, state, batch, rng, accumulate_steps
        )
        if trainable is not None:
            gradient = jax.tree.map(lambda g, mask: jnp.where(mask, g, 0), gradient, trainable)
        return gradient, sums, model_state

    return gradient_of


def accumulated_gradient(
    task: Task,
    preprocessing: Preprocessing,
    state: TrainState,
    batch: Batch,
    rng: Array,
    parts: int,
) -> tuple[Any, dict[str, Float[Array, ""]], dict[str, Any]]:
    """Compute the gradient of a batch's mean loss, sums of its metrics, and the new model state.

    The batch is divided into `parts`; the gradients of their summed losses are added and divided
    once by the weight of the whole batch. The result is the mean over all its images, for any image
    weights and any division. Batch statistics and MixUp partners are those of a part.
    """

    def summed_loss(params, model_state, part, rng):
        variables = {"params": params, **model_state}
        part = task.normalized(part, preprocessing)
        loss, weight, metrics, model_state = task.loss(variables, part, rng, train=True)
        return loss, ({"loss": loss, "weight": weight, **metrics}, model_state)

    def add_part(carry, part_and_key):
        gradient, sums, model_state = carry
        news, (new_sums, model_state) = jax.grad(summed_loss, has_aux=True)(
            state.params, model_state, *part_and_key
        )
        return (_add(gradient, news), _add(sums, new_sums), model_state), None

    if parts == 1:
        gradient, (sums, model_state) = jax.grad(summed_loss, has_aux=True)(
            state.params, state.model_state, batch, rng
        )
    else:
        # Every `parts`-th image, so that each device already holds its share of every part.
        cut = jax.tree.map(lambda x: x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1), batch)
        keys = jax.random.split(rng, parts)
        nothing = jax.tree.map(jnp.zeros_like, (state.params, _sums_of(state)))
        (gradient, sums, model_state), _ = jax.lax.scan(
            add_part, (*nothing, state.model_state), (cut, keys)
        )
    return jax.tree.map(lambda g: g / sums["weight"], gradient), sums, model_state


def ema_decay_at(decay: float, updates: Array) -> Float[Array, ""]:
    """Return the decay of the parameter average at an update, counted from 1.

    It is `decay`, limited by a warm-up of `(1 + updates) / (10 + updates)`, with which the average
    forgets its start (as in TensorFlow's ExponentialMovingAverage). A decay of 1 never changes.
    """
    if decay == 1.0:
        return jnp.ones(())
    return jnp.minimum(decay, (1.0 + updates) / (10.0 + updates))


def make_eval_step(
    evaluator: Evaluator, task: Task, preprocessing: Preprocessing, mesh: Mesh
) -> Callable[[dict, Batch], tuple[dict[str, jax.Array], dict[str, jax.Array]]]:
    """Return a function from model variables and a batch to an evaluator's sums and rows.

    The `mask` of the batch is added to the rows. Both are replicated on all devices, so that each
    host has the rows of the global batch.
    """

    def eval_step(variables: dict, batch: Batch):
        sums, rows = evaluator.step(variables, task.normalized(batch, preprocessing))
        return sums, {**rows, "mask": batch["mask"]}

    return jax.jit(eval_step, out_shardings=replicated(mesh))


def make_rows_step(
    task: Task, preprocessing: Preprocessing, mesh: Mesh
) -> Callable[[Any, Batch], tuple[dict[str, jax.Array], dict[str, jax.Array]]]:
    """Return a function from `Task.rows_from` and a batch to no sums and the `Task.rows`."""

    def rows_step(arrays: Any, batch: Batch):
        rows = task.rows(arrays, task.normalized(batch, preprocessing))
        return {}, {**rows, "mask": batch["mask"]}

    return jax.jit(rows_step, out_shardings=replicated(mesh))


def _add(one: Any, other: Any) -> Any:
    return jax.tree.map(jnp.add, one, other)


def _sums_of(state: TrainState) -> dict[str, Array]:
    """Return zeros for the sums of a task: those of the state without the step's own."""
    return {name: x for name, x in state.totals.items() if name not in ("steps", "grad_norm")}
