"""What is learned. The loop knows no objective by name; each gives one function:

    loss(params, model_state, batch, rng, train) -> (loss_sum, weight, metrics, model_state)

with sums over the batch, not means, so that masked, ragged and sharded batches add up exactly:
`loss_sum / weight` is the loss, and each of `metrics` divided by `weight` is the metric of that
name. `model_state` holds collections other than parameters (running statistics), updated while
training.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

Params = Any
ModelState = dict[str, Any]
Batch = dict[str, Array]


class Objective(Protocol):
    """Anything with this `loss`; see the top of the file.

    criterion: the metric by which the best checkpoint is chosen; more is better.
    """

    criterion: str

    def loss(
        self, params: Params, model_state: ModelState, batch: Batch, rng: Array | None, train: bool
    ) -> tuple[Float[Array, ""], Float[Array, ""], dict[str, Float[Array, ""]], ModelState]: ...


@dataclass(frozen=True)
class Supervised:
    """Softmax cross-entropy against one label for each picture.

    The batch holds `image` (float32, normalised, `(batch, height, width, channels)`), `label`
    (integers, `(batch,)`) and, where some rows are padding, `mask` (1 for real rows, 0 for
    padding). Labels are smoothed while training only: with K classes the true one gets 1 - s + s/K,
    the others s/K (Szegedy et al. 2016, section 7).
    """

    model: nn.Module
    label_smoothing: float = 0.0
    criterion = "accuracy"

    def loss(self, params, model_state, batch, rng, train):
        """Sums over the batch of cross-entropy (nats) and of right answers (`accuracy`)."""
        logits, model_state = apply_model(
            self.model, params, model_state, batch["image"], rng=rng, train=train
        )
        targets = jax.nn.one_hot(batch["label"], logits.shape[-1])
        if train:
            targets = optax.smooth_labels(targets, self.label_smoothing)
        mask = batch.get("mask", jnp.ones(len(logits)))
        losses = optax.softmax_cross_entropy(logits, targets)
        right = logits.argmax(-1) == batch["label"]
        metrics = {"accuracy": jnp.sum(right * mask)}
        return jnp.sum(losses * mask), jnp.sum(mask), metrics, model_state


def apply_model(model, params, model_state, images, *, rng=None, train=False):
    """Outputs of a model, and its state after the call, which only training changes."""
    variables = {"params": params, **model_state}
    if not train:
        return model.apply(variables, images, train=False), model_state
    return model.apply(
        variables, images, train=True, rngs={"dropout": rng}, mutable=list(model_state)
    )
