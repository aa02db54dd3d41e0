"""Runs side by side: what differs in their configurations, and what came of it.

Runs that differ in nothing but the seed are one `Arm`. Arms are compared with the best of them on
the same test images; where the images differ, they are not.
"""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from vit_jax.errors import UserError
from vit_jax.models.summary.cost import Cost, cost
from vit_jax.studies.finished import FinishedRun, differing, is_lower_better, main_metric
from vit_jax.studies.statistics import Spread, Test, mcnemar, paired, spread


@dataclass(frozen=True)
class Arm:
    """Runs with the same settings but for the seed.

    settings: of the keys in which arms differ. runs: in the order of their seeds.
    """

    settings: Mapping[str, Any]
    runs: tuple[FinishedRun, ...]

    @property
    def name(self) -> str:
        """Return the differing settings in one line, or the name of the run without any."""
        if not self.settings:
            return self.runs[0].name
        return ", ".join(f"{short(key)}={value}" for key, value in self.settings.items())

    def values(self, metric: str) -> list[float]:
        """Return the results by run."""
        return [float(run.result[metric]) for run in self.runs]

    def spread(self, metric: str) -> Spread:
        """Return mean and spread of the results."""
        return spread(self.values(metric))

    @property
    def minutes(self) -> float | None:
        """Return the mean wall time of training in minutes; None if it was not logged."""
        logged = [run.result.get("elapsed_seconds") for run in self.runs]
        return None if None in logged else float(np.mean(logged)) / 60

    @property
    def shares(self) -> Float[np.ndarray, " images"] | None:
        """Return for each test image the share of runs that have it right; None if unknown."""
        if not all(run.judged for run in self.runs):
            return None
        return np.mean([run.judged.right for run in self.runs], axis=0)


@dataclass(frozen=True)
class Comparison:
    """Arms with their results. metric: by which they are compared.

    same_images: whether all were tested on the same images.
    """

    arms: tuple[Arm, ...]
    metric: str
    same_images: bool

    @functools.cached_property
    def best(self) -> Arm:
        """Return the arm with the best mean; the first if none has a mean that is a number."""
        lower = is_lower_better(self.metric, self.arms[0].runs[0].task)
        return best_arm(self.arms, self.metric, lower) or self.arms[0]

    def cost(self, arm: Arm) -> Cost:
        """Return parameters and operations of an arm's model."""
        return self._costs[self.arms.index(arm)]

    @functools.cached_property
    def _costs(self) -> list[Cost]:
        """Return the cost of each arm; that of a model which several have is found once."""
        found: dict[str, Cost] = {}
        models = []
        for arm in self.arms:
            record = arm.runs[0].run.read_model()
            models.append(f"{record.name} {record.fields}")
            if models[-1] not in found:
                found[models[-1]] = cost(record.create_model())
        return [found[model] for model in models]

    def test(self, arm: Arm) -> tuple[str, Test] | None:
        """Return the test of an arm against the best, and its name; None if there is none.

        Two single runs: McNemar's on the test images. Several: Student's on the differences by
        image, each the mean over the runs. Without predictions by image: Student's on the
        differences by seed, of the seeds that both have.
        """
        if arm is self.best or not self.same_images:
            return None
        if self.metric == "accuracy" and arm.shares is not None and self.best.shares is not None:
            if len(arm.runs) == len(self.best.runs) == 1:
                right = (arm.runs[0].judged.right, self.best.runs[0].judged.right)
                return "McNemar", mcnemar(*right)
            return "by image", paired(arm.shares, self.best.shares)
        return self.test_by_seed(arm)

    def test_by_seed(self, arm: Arm) -> tuple[str, Test] | None:
        """Return Student's test of the differences to the best by seed; None below two seeds."""
        own, best = (
            {run.seed: run.result[self.metric] for run in one.runs} for one in (arm, self.best)
        )
        seeds = sorted(own.keys() & best.keys())
        if arm is self.best or not self.same_images or len(seeds) < 2:
            return None
        return "by seed", paired([own[s] for s in seeds], [best[s] for s in seeds])

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        arms = []
        for arm in self.arms:
            tested = self.test(arm)
            arms.append(
                {
                    "settings": dict(arm.settings),
                    "runs": [str(run.run.path) for run in arm.runs],
                    "seeds": [run.seed for run in arm.runs],
                    "values": arm.values(self.metric),
                    **arm.spread(self.metric)._asdict(),
                    "test": tested and {"kind": tested[0], **tested[1]._asdict()},
                    "parameters": self.cost(arm).parameters,
                    "macs": self.cost(arm).macs,
                    "minutes": arm.minutes,
                }
            )
        best = self.arms.index(self.best)
        return {
            **{"metric": self.metric, "same_images": self.same_images, "best": best},
            "arms": arms,
        }


def best_arm(arms: Iterable[Arm], metric: str, lower_is_better: bool) -> Arm | None:
    """Return the arm with the best mean; None if none has a mean that is a number."""
    means = [(arm.spread(metric).mean, arm) for arm in arms]
    choose = min if lower_is_better else max
    numbers = [one for one in means if not math.isnan(one[0])]
    return choose(numbers, key=lambda one: one[0], default=(None, None))[1]


def compare(runs: Sequence[FinishedRun], metric: str = "") -> Comparison:
    """Return finished runs as arms, in the order in which they were given.

    Args:
        metric: by which they are compared; "": that of the task.

    Raises:
        UserError: the runs are of different tasks, or some do not have the metric.
    """
    tasks = dict.fromkeys(run.task for run in runs)
    if len(tasks) > 1:
        examples = [next(run.name for run in runs if run.task == task) for task in tasks]
        named = ", ".join(f"{task} ({name})" for task, name in zip(tasks, examples, strict=True))
        raise UserError(f"runs of different tasks cannot be compared: {named}; name runs of one")
    metric = metric or main_metric(runs)
    if lacking := [run for run in runs if not _is_number(run.result.get(metric))]:
        known = sorted(name for name, value in lacking[0].result.items() if _is_number(value))
        raise UserError(f"{lacking[0].run.path} has no {metric!r}; it has {', '.join(known)}")
    keys = differing(runs)
    arms: dict[tuple, list[FinishedRun]] = {}
    for run in runs:
        arms.setdefault(tuple(repr(run.settings.get(key)) for key in keys), []).append(run)
    return Comparison(
        tuple(
            Arm(
                {key: group[0].settings.get(key) for key in keys},
                tuple(sorted(group, key=lambda run: run.seed)),
            )
            for group in arms.values()
        ),
        metric,
        len({run.test for run in runs}) == 1,
    )


def short(key: str) -> str:
    """Return the last part of a dotted key, with the one before where it says too little alone."""
    *before, last = key.split(".")
    return f"{before[-1]}.{last}" if before and last in ("name", "kind", "every") else last


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
