"""Zero-shot classification: the class of an image is that whose texts are nearest to it."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from vit_jax.data.features import LABELLED, Feature
from vit_jax.evaluation.base import Evaluator


@dataclass(frozen=True)
class ZeroShot(Evaluator):
    """Mean loss of a task with images and texts, and `zero_shot_accuracy`.

    A class is the mean of the vectors of its texts, one for each template (Radford et al. 2021,
    section 3.1.4). An image whose vector is not finite counts as wrong.

    task: gives the vectors, by `image_vectors` and `class_vectors`.
    """

    task: Any
    name: ClassVar[str] = "zero_shot"
    inputs: ClassVar = {**LABELLED, "text": Feature("text")}

    def step(self, variables, batch):
        """Return the sums of the loss, its metrics and of right answers; rows are the answers."""
        loss = self.task.loss(variables, batch, jax.random.key(0), train=False)
        images, _ = self.task.image_vectors(variables, batch["image"])
        cosines = images @ self.task.class_vectors(variables).T
        finite = jnp.isfinite(cosines).all(axis=-1)
        predicted = jnp.where(finite, cosines.argmax(-1), -1)
        right = (predicted == batch["label"]) * batch["mask"]
        sums = {"loss": loss.total, "weight": loss.weight, **loss.metrics}
        return {**sums, "zero_shot_accuracy": right.sum()}, {"predicted": predicted}
