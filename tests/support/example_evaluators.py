"""Evaluator as a user's own module would define it: the contrast of the held-out images."""

from dataclasses import dataclass

from vit_jax.evaluation.base import HELD_OUT, Evaluator, Result
from vit_jax.evaluation.registry import register_evaluator
from vit_jax.tasks import Task


@register_evaluator("contrast")
@dataclass(frozen=True)
class Contrast(Evaluator):
    task: Task

    def step(self, variables, batch):
        deviation, mask = batch["image"].std((1, 2, 3)), batch["mask"]
        sums = {"contrast": (deviation * mask).sum(), "weight": mask.sum()}
        return sums, {"deviation": deviation}

    def finish(self, parts):
        part = parts[HELD_OUT]
        largest = float(part.rows["deviation"].max())
        return Result({**part.means(), "largest": largest, "examples": part.examples})
