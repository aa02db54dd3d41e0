"""The train state: everything that changes from step to step.

Checkpoints contain all of it, so a resumed run has the same state as one that never stopped. Random
numbers are not part of it: they are derived from the seed and the step.
"""

from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int


@flax.struct.dataclass
class NonfiniteSteps:
    """Steps whose loss or gradient was not finite, and which therefore changed nothing.

    total: in the whole run. in_row: consecutive ones up to now.
    longest: most consecutive ones. last: number of the last one, counted from 1; 0: there is none.
    cause: the nonfinite value of the last one, an index of `CAUSES`.
    """

    total: Int[Array, ""]
    in_row: Int[Array, ""]
    longest: Int[Array, ""]
    last: Int[Array, ""]
    cause: Int[Array, ""]

    CAUSES = ("nothing", "the loss", "the gradient")

    @classmethod
    def none(cls) -> "NonfiniteSteps":
        """Return the counts at the start of a run."""
        return cls(*(jnp.zeros((), jnp.int32) for _ in range(5)))

    def after(self, step: Array, loss: Array, grad_norm: Array) -> "NonfiniteSteps":
        """Return the counts after a step with this number (from 1), loss and gradient norm."""
        cause = jnp.where(jnp.isfinite(loss), jnp.where(jnp.isfinite(grad_norm), 0, 2), 1)
        bad = cause > 0
        in_row = jnp.where(bad, self.in_row + 1, 0)
        return NonfiniteSteps(
            total=self.total + bad,
            in_row=in_row,
            longest=jnp.maximum(self.longest, in_row),
            last=jnp.where(bad, step, self.last),
            cause=jnp.where(bad, cause, self.cause),
        )


@flax.struct.dataclass
class TrainState:
    """State after `step` steps.

    step: batches taken.
    params: parameters of the model, float32.
    ema_params: their exponential moving average; None if the run keeps none.
    opt_state: of the optimizer.
    model_state: other collections of the model, such as running statistics.
    nonfinite_steps: skipped steps, which changed none of these.
    totals: sums of the training metrics since the last log line. They are kept here, on the device,
        so that no step waits for the host, and a resumed run logs the same numbers.
    """

    step: Int[Array, ""]
    params: Any
    ema_params: Any
    opt_state: Any
    model_state: dict[str, Any]
    nonfinite_steps: NonfiniteSteps
    totals: dict[str, Float[Array, ""]]

    @property
    def updates(self) -> Int[Array, ""]:
        """Number of steps that changed the parameters."""
        return self.step - self.nonfinite_steps.total

    def variables(self, *, raw: bool = False) -> dict[str, Any]:
        """Return the variables for `model.apply`, with averaged parameters if the run keeps them.

        raw: use the parameters without averaging.
        """
        params = self.params if raw or self.ema_params is None else self.ema_params
        return {"params": params, **self.model_state}


def random_keys(seed: int) -> tuple[Array, Array]:
    """Return the keys for initialisation and for the steps (fold the step number into those)."""
    initial, stepwise = jax.random.split(jax.random.key(seed))
    return initial, stepwise


def state_maker(
    init: Callable[[Array], dict[str, Any]],
    optimizer: optax.GradientTransformation,
    metric_names: tuple[str, ...],
    *,
    average: bool = False,
    start_from: Callable[[Any, Any], Any] = lambda variables, trained: trained,
) -> Callable[..., TrainState]:
    """Return a function from a random key to the train state before the first step.

    The function takes pretrained variables as an optional second argument.

    init: from the key to the initial variables of all modules.
    average: whether to keep an average of the parameters.
    start_from: from the initial variables and pretrained ones to those that the run begins with.
    """

    def make(key: Array, trained: dict[str, Any] | None = None) -> TrainState:
        variables = init(key)
        variables = dict(variables if trained is None else start_from(variables, trained))
        params = variables.pop("params")
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            ema_params=params if average else None,
            opt_state=optimizer.init(params),
            model_state=variables,
            nonfinite_steps=NonfiniteSteps.none(),
            totals=zero_totals(metric_names),
        )

    return make


def zero_totals(metric_names: tuple[str, ...]) -> dict[str, Float[Array, ""]]:
    """Return zeros for the sums of steps, loss, weight, gradient norm and each metric."""
    names = ("steps", "loss", "weight", "grad_norm", *metric_names)
    return {name: jnp.zeros((), jnp.float32) for name in names}
