"""One training step and one evaluation step, each a single compiled function.

Pictures come as uint8 and are normalised here, on the device. The training step donates the old
state, so that parameters and optimizer moments are held once.
"""

from collections.abc import Callable

import jax
import optax
from jax.sharding import Mesh

from vit_jax.data import Preprocessing
from vit_jax.training.objectives import Batch, Objective
from vit_jax.training.sharding import replicated
from vit_jax.training.state import TrainState, random_keys


def make_train_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    preprocessing: Preprocessing,
    mesh: Mesh,
    seed: int,
) -> Callable[[TrainState, Batch], TrainState]:
    """A function from a state and a batch to the next state; the old state is used up."""

    def train_step(state: TrainState, batch: Batch) -> TrainState:
        rng = jax.random.fold_in(random_keys(seed)[1], state.step)
        batch = {**batch, "image": preprocessing.normalize(batch["image"])}

        def mean_loss(params):
            loss_sum, weight, metrics, model_state = objective.loss(
                params, state.model_state, batch, rng, True
            )
            return loss_sum / weight, (loss_sum, weight, metrics, model_state)

        gradient, (loss_sum, weight, metrics, model_state) = jax.grad(mean_loss, has_aux=True)(
            state.params
        )
        updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
        news = {
            "steps": 1.0,
            "loss": loss_sum,
            "weight": weight,
            "grad_norm": optax.global_norm(gradient),
            **metrics,
        }
        return state.replace(
            step=state.step + 1,
            params=optax.apply_updates(state.params, updates),
            opt_state=opt_state,
            model_state=model_state,
            totals={name: total + news[name] for name, total in state.totals.items()},
        )

    return jax.jit(train_step, donate_argnums=0, out_shardings=replicated(mesh))


def make_eval_step(
    objective: Objective, preprocessing: Preprocessing, mesh: Mesh
) -> Callable[[dict, Batch], tuple[dict[str, jax.Array], dict[str, jax.Array]]]:
    """A function from model variables and a batch to the objective's sums and outputs.

    Both are on every device and host, so that each has the outputs of the whole global batch.
    """

    def eval_step(variables: dict, batch: Batch):
        model_state = {name: value for name, value in variables.items() if name != "params"}
        batch = {**batch, "image": preprocessing.normalize(batch["image"])}
        return objective.evaluate(variables["params"], model_state, batch)

    return jax.jit(eval_step, out_shardings=replicated(mesh))
