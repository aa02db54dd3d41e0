"""Zero-shot classification: the class of an image is that whose texts are nearest to it."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from vit_jax.data.features import IMAGE, LABEL, Feature
from vit_jax.evaluation.base import Evaluator


@dataclass(frozen=True)
class ImagesAndTexts(Evaluator):
    """Mean loss of a task with images and texts, and that of its metrics.

    Its step gives the vectors of both, which further evaluators read without another pass.

    task: gives the vectors, by `image_vectors` and `text_vectors`.
    """

    task: Any
    name: ClassVar[str] = ""
    shared: ClassVar[str] = "images_and_texts"

    @property
    def inputs(self):
        """The image, its text, and the label if there are classes."""
        pairs = {"image": IMAGE, "text": Feature("text")}
        return {**pairs, "label": LABEL} if self.task.prompts else pairs

    def step(self, variables, batch):
        """Return the sums of the loss and its metrics, and of right answers if there are classes.

        Rows are the vectors of images and texts, `image` and `text`, and the ids of the texts, by
        which equal ones are known.
        """
        loss = self.task.loss(variables, batch, jax.random.key(0), train=False)
        images, _ = self.task.image_vectors(variables, batch["image"])
        texts = self.task.text_vectors(variables, batch["text"])
        sums = {"loss": loss.total, "weight": loss.weight, **loss.metrics}
        rows = {"image": images, "text": texts, "ids": batch["text"]}
        if not self.task.prompts:
            return sums, rows
        cosines = images @ self.task.class_vectors(variables).T
        finite = jnp.isfinite(cosines).all(axis=-1)
        predicted = jnp.where(finite, cosines.argmax(-1), -1)
        right = (predicted == batch["label"]) * batch["mask"]
        sums["zero_shot_accuracy"] = right.sum()
        return sums, {**rows, "predicted": predicted}


@dataclass(frozen=True)
class ZeroShot(ImagesAndTexts):
    """The same for a task whose data have classes, with `zero_shot_accuracy`.

    A class is the mean of the vectors of its texts, one for each template (Radford et al. 2021,
    section 3.1.4). An image whose vector is not finite counts as wrong.

    task: gives also `class_vectors`.
    """

    name: ClassVar[str] = "zero_shot"
