"""Accuracy of subnets with the weights that they inherit, many at once in one program."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models.supernet.space import Subnet
from vit_jax.tasks.supernet import Supernet
from vit_jax.training.open_run import OpenedRun


class InheritedAccuracy:
    """Numbers of correct predictions of subnets of a supernet, on all images of one split.

    The images are decoded once and stay in memory. The program is compiled once, for groups of
    `at_once` subnets, whose masked parameters are in memory together; the last group is filled.

    images: their number.
    """

    def __init__(self, opened: OpenedRun, variables: Any, split: str, at_once: int = 10):
        experiment = opened.experiment
        task: Supernet = experiment.task
        self.at_once = at_once
        self._blocks = task.model.depth
        self._variables = jax.device_put(variables)
        self._batches = list(map(jax.device_put, experiment.eval_batches(opened.source(split))))
        self.images = sum(int(batch["mask"].sum()) for batch in self._batches)

        def correct(variables, sizes, batch):
            batch = task.normalized(batch, experiment.preprocessing)

            def of_one(sizes):
                sums, _ = task.predict_subnet(variables, batch, sizes)
                return jnp.round(sums["accuracy"]).astype(jnp.int32)

            return jax.vmap(of_one)(sizes)

        self._correct = jax.jit(correct)

    def __call__(self, subnets: Sequence[Subnet]) -> list[int]:
        """Return the number of correct predictions of each subnet."""
        found: list[int] = []
        for first in range(0, len(subnets), self.at_once):
            group = list(subnets[first : first + self.at_once])
            filled = [*group, *group[-1:] * (self.at_once - len(group))]
            sizes = [subnet.sizes(self._blocks) for subnet in filled]
            sizes = jax.tree.map(lambda *each: np.stack(each), *sizes)
            correct = sum(
                np.asarray(self._correct(self._variables, sizes, batch)) for batch in self._batches
            )
            found += correct[: len(group)].tolist()
        return found
