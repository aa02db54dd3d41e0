"""Exact evaluation: every example counts once, on any batch size and any number of devices.

The last batch is padded and the padding masked; sums are added up over all batches and divided once
at the end, so no mean of means can creep in.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int

from vit_jax.data import BadPictures, Preprocessing, eval_batches
from vit_jax.training.objectives import apply_model
from vit_jax.training.sharding import replicated, to_devices


class Interrupted(Exception):
    """An evaluation that was asked to stop halfway, and has no result."""


@dataclass(frozen=True)
class Predictions:
    """What a model says of each example, in the order of its data.

    labels, predicted: class indices. confidence: probability of the predicted class.
    """

    labels: Int[np.ndarray, " examples"]
    predicted: Int[np.ndarray, " examples"]
    confidence: Float[np.ndarray, " examples"]


def evaluate(
    eval_step: Callable,
    variables: dict[str, Any],
    batches: Iterable[dict[str, np.ndarray]],
    mesh: Mesh,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, float]:
    """Means over all examples of the loss and of each metric, and the number of `examples`.

    Args:
        eval_step: of `make_eval_step`.
        variables: {"params": ..., and any other collections}.
        batches: of `padded_batches`.
        should_stop: asked before every batch; `Interrupted` is raised when it says so.
    """
    totals = None
    for batch in batches:
        if should_stop():
            raise Interrupted
        sums = eval_step(variables, to_devices(batch, mesh))
        totals = sums if totals is None else jax.tree.map(lambda a, b: a + b, totals, sums)
    totals = {name: float(total) for name, total in jax.device_get(totals).items()}
    examples = totals.pop("weight")
    return {
        **{name: total / examples for name, total in totals.items()},
        "examples": int(examples),
    }


def padded_batches(
    source,
    preprocessing: Preprocessing,
    batch_size: int,
    mesh: Mesh,
    bad: BadPictures | None = None,
):
    """Batches of a whole source whose size divides over the devices, whatever `batch_size` is.

    bad: takes note of pictures that cannot be read, which are masked.
    """
    devices = mesh.size
    return eval_batches(
        source,
        preprocessing,
        batch_size=-(-batch_size // devices) * devices,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
        bad=bad,
    )


def predict(
    model,
    variables: dict[str, Any],
    batches: Iterable[dict[str, np.ndarray]],
    preprocessing: Preprocessing,
    mesh: Mesh,
) -> Predictions:
    """The predicted class of every example and how sure the model is of it."""

    def predict_step(variables, images):
        params, model_state = (
            variables["params"],
            {k: v for k, v in variables.items() if k != "params"},
        )
        logits, _ = apply_model(model, params, model_state, preprocessing.normalize(images))
        probabilities = jax.nn.softmax(logits)
        return probabilities.argmax(-1), probabilities.max(-1)

    predict_step = jax.jit(predict_step, out_shardings=replicated(mesh))
    columns = []
    for batch in batches:
        real = batch["mask"] > 0
        placed = to_devices({"image": batch["image"]}, mesh)
        predicted, confidence = jax.device_get(predict_step(variables, placed["image"]))
        columns.append((batch["label"][real], predicted[real], confidence[real]))
    return Predictions(*(np.concatenate(column) for column in zip(*columns, strict=True)))
