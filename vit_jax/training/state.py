"""The train state: everything that changes from step to step, in one place.

Checkpoints hold it whole, so a run that goes on has the same state as one that never stopped.
Random numbers are not in it: they follow from the seed and the step.
"""

from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from vit_jax.training.sharding import replicated


@flax.struct.dataclass
class TrainState:
    """State after `step` steps.

    step: batches taken.
    params: parameters of the model, float32.
    opt_state: of the optimizer.
    model_state: other collections of the model, such as running statistics.
    totals: sums of the training metrics since they were last written to the log. They live here, on
        the device, so that no step waits for the host, and a run that goes on logs the same
        numbers.
    """

    step: Int[Array, ""]
    params: Any
    opt_state: Any
    model_state: dict[str, Any]
    totals: dict[str, Float[Array, ""]]


def random_keys(seed: int) -> tuple[Array, Array]:
    """Keys for initialisation and for the steps (fold the step number into the latter)."""
    initial, stepwise = jax.random.split(jax.random.key(seed))
    return initial, stepwise


def abstract_state(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    image_shape: tuple[int, int, int],
    metric_names: tuple[str, ...],
    mesh: Mesh,
) -> TrainState:
    """Shapes, types and places of the train state, without computing anything."""
    make = _initializer(model, optimizer, image_shape, metric_names)
    shapes = jax.eval_shape(make, jax.random.key(0))
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated(mesh)), shapes
    )


def initial_state(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    image_shape: tuple[int, int, int],
    metric_names: tuple[str, ...],
    mesh: Mesh,
    seed: int,
) -> TrainState:
    """A fresh train state, made on the devices where it stays."""
    make = _initializer(model, optimizer, image_shape, metric_names)
    return jax.jit(make, out_shardings=replicated(mesh))(random_keys(seed)[0])


def zero_totals(metric_names: tuple[str, ...]) -> dict[str, Float[Array, ""]]:
    """Empty sums: of steps, loss, weight and gradient norm, and of each metric."""
    names = ("steps", "loss", "weight", "grad_norm", *metric_names)
    return {name: jnp.zeros((), jnp.float32) for name in names}


def _initializer(model, optimizer, image_shape, metric_names):
    """A function from a random key to a train state."""

    def make(key):
        variables = model.init(key, jnp.zeros((1, *image_shape)), train=False)
        variables.pop("intermediates", None)  # outputs of layers, not state
        params = variables.pop("params")
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            opt_state=optimizer.init(params),
            model_state=dict(variables),
            totals=zero_totals(metric_names),
        )

    return make
