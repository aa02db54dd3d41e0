"""Averages of checkpoints ("soups") of one or several runs, uniform or greedy.

    soup("runs/soup", ["runs/digits"])                       # all checkpoints of a run
    soup("runs/soup", ["runs/a", "runs/b"], greedy=True)     # the last ones of several

The mean of parameters is one model, at the cost of one. It is good where all of them lie in one
valley of the loss: checkpoints of one run, or runs that were fine-tuned from the same weights.
Wortsman et al. (2022), "Model soups", recipe 1 (uniform) and recipe 1 with held-out data (greedy).
"""

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from vit_jax.errors import UserError
from vit_jax.runs import ModelRecord, RunDir
from vit_jax.runs.checkpoint_files import leaves, model_changes
from vit_jax.runs.derived import check_empty, is_in_training, write_derived

ALL, LAST = "all", "last"
# Fields of a model that have no effect in evaluation.
_OF_TRAINING = ("dropout", "drop_path", "init_scheme")


class Ingredient(NamedTuple):
    """Checkpoint of a run."""

    run: RunDir
    step: int

    def __str__(self) -> str:
        return f"{self.run.path}, step {self.step}"


class Tasted(NamedTuple):
    """Ingredient with its result on validation data.

    metric: its name. alone: its value for the ingredient. taken: whether it is in the average.
    together: value for the average after this ingredient was tried.
    """

    ingredient: Ingredient
    metric: str
    alone: float
    taken: bool
    together: float


def soup(
    folder: str | os.PathLike,
    runs: Sequence[str | os.PathLike],
    *,
    greedy: bool = False,
    steps: str | Sequence[int] = "",
    raw: bool = False,
    report: Callable[[str], None] = lambda sentence: None,
) -> list[Ingredient]:
    """Write the average of checkpoints as a run folder, and return those that are in it.

    Running statistics are averaged too. Averages are computed in float64.

    Args:
        folder: output folder; it must be empty or missing.
        runs: folders of finished runs with the same model. Data are those of the first.
        greedy: take the checkpoints in the order of their validation metric, and keep each only if
            the average with it is at least as good. The test data are never read.
        steps: "all", "last" or numbers of steps, of every run. By default all of a single run, and
            the last of several.
        raw: the raw parameters of runs that have their moving average too.
        report: called with sentences on the progress.

    Raises:
        UserError: unusable or different runs, fewer than two checkpoints, no validation data for
            the greedy choice, or a folder that is not empty.
    """
    check_empty(folder)
    found = ingredients(runs, steps)
    record = _common_record(found)
    if greedy:
        tasted = list(_taste(found, raw, report))
        found = [one.ingredient for one in tasted if one.taken]
    variables = average(_read(one, raw) for one in found)
    names = " and ".join(map(str, found[:2])) if len(found) <= 2 else f"{len(found)} checkpoints"
    record = dataclasses.replace(record, origin=f"average of {names}; {record.origin}")
    write_derived(folder, found[0].run, record, variables)
    return found


def ingredients(
    runs: Sequence[str | os.PathLike], steps: str | Sequence[int] = ""
) -> list[Ingredient]:
    """Return the checkpoints of runs that `soup` averages, at least two."""
    if not runs:
        raise UserError("there is no run to average; name one or several run folders")
    steps = steps or (ALL if len(runs) == 1 else LAST)
    found: dict[tuple[Any, int], Ingredient] = {}
    for path in runs:
        run = RunDir(path)
        if run.read_model().quantization:
            raise UserError(
                f"{path} is quantized; average the runs it was made from, then quantize"
            )
        if is_in_training(run):
            raise UserError(f"{path} is not finished; train it to the end, or leave it out")
        last = run.find_step()
        wanted = run.steps() if steps == ALL else [last] if steps == LAST else steps
        for step in wanted:
            found[run.path.resolve(), step] = Ingredient(run, run.find_step(step))
    if len(found) < 2:
        [only] = found.values()
        raise UserError(
            f"an average needs two checkpoints or more, but this is one ({only}); name several "
            "runs, or keep more checkpoints of a run (--config.checkpoint.keep)"
        )
    return list(found.values())


def average(trees: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean of trees of arrays; arrays of whole numbers are those of the first.

    Raises UserError if their arrays differ in name or shape.
    """
    trees = iter(trees)
    first = next(trees)
    shapes = {path: leaf.shape for path, leaf in leaves(first).items()}
    totals = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), first)
    count = 1
    for tree in trees:
        others = {path: leaf.shape for path, leaf in leaves(tree).items()}
        if shapes != others:
            path = min(set(shapes.items()) ^ set(others.items()))[0]
            raise UserError(
                f"the checkpoints have different parameters: {path} is {shapes.get(path)} in one "
                f"and {others.get(path)} in another; average runs of one model"
            )
        totals = jax.tree.map(np.add, totals, dict(tree))
        count += 1

    def mean(leaf: np.ndarray, total: np.ndarray) -> np.ndarray:
        is_whole = np.issubdtype(leaf.dtype, np.integer)
        return leaf if is_whole else (total / count).astype(leaf.dtype)

    return jax.tree.map(mean, dict(first), totals)


def _read(one: Ingredient, raw: bool) -> dict[str, Any]:
    return one.run.read_variables(one.step, raw=raw)[0]


def _common_record(found: Sequence[Ingredient]) -> ModelRecord:
    """Return the record of the first run. Raises UserError if another has a different model."""
    runs = list(dict.fromkeys(one.run.path for one in found))
    first, *others = [RunDir(path).read_model() for path in runs]
    for path, other in zip(runs[1:], others, strict=True):
        if difference := _difference(first, other):
            raise UserError(
                f"{runs[0]} and {path} are different models: {difference}; average runs of one "
                "model"
            )
    return first


def _difference(one: ModelRecord, other: ModelRecord) -> str:
    """Return the first difference in words; "" if the parameters mean the same."""
    for name in ("name", "task", "encoder", "class_names"):
        mine, theirs = getattr(one, name), getattr(other, name)
        if mine != theirs:
            return f"{name} is {mine!r} in the first and {theirs!r} in the second"
    models = one.create_model(), other.create_model()
    for change in model_changes(one.to_json(), other.to_json()):
        part, _, field = change.partition(" ")[0].partition(".")
        if part == "fields":
            values = [getattr(model, field, None) for model in models]
            if values[0] == values[1] or field.endswith(_OF_TRAINING):
                continue
        return change.replace(" -> ", " in the first and ", 1) + " in the second"
    return ""


# ------------------------------------------------------------------------------------------- greedy


def _taste(
    found: Sequence[Ingredient], raw: bool, report: Callable[[str], None]
) -> Iterable[Tasted]:
    """Yield the ingredients, best first, with the choice of each."""
    metric, direction, judge = _judge(found)
    sign = 1 if direction == "max" else -1
    alone = {}
    for one in found:
        alone[one] = judge(_read(one, raw))
        report(f"{one}: validation {metric} {alone[one]:.4f}")
    # A result that is no number comes last; of equal ones the earlier in the list comes first.
    order = sorted(found, key=lambda one: _worth(sign, alone[one]), reverse=True)
    taken, best = [], -math.inf
    for one in order:
        together = alone[one]
        if taken:
            together = judge(average(_read(each, raw) for each in (*taken, one)))
        is_good = _worth(sign, together) >= best and math.isfinite(together)
        if is_good:
            taken.append(one)
            best = sign * together
        report(f"{one}: {'taken' if is_good else 'left out'}, {metric} with it {together:.4f}")
        yield Tasted(one, metric, alone[one], is_good, together)
    if not taken:
        raise UserError(f"no checkpoint has a finite validation {metric}; train again")


def _worth(sign: int, value: float) -> float:
    return sign * value if math.isfinite(value) else -math.inf


def _judge(
    found: Sequence[Ingredient],
) -> tuple[str, str, Callable[[Mapping[str, Any]], float]]:
    """Return name and direction of the metric that selects, and its function of variables."""
    from vit_jax.training.leaks import leak
    from vit_jax.training.open_run import open_run

    opened = open_run(found[0].run.path)
    source = opened.experiment.validation_source
    if source is None:
        raise UserError(
            f"{found[0].run.path} was trained without validation data, which the greedy choice "
            "needs (--config.data.train='train[:90%]' --config.data.validation='train[90%:]'); "
            "omit --greedy"
        )
    for one in {one.run.path: one for one in found}.values():
        if seen := leak(source, one.run.read_training_images()):
            raise UserError(
                f"{one.run.path} was trained on {seen} of {found[0].run.path}, so they cannot "
                "choose between the runs; omit --greedy, or train all on the same split"
            )
    metric, direction = opened.experiment.task.monitor

    def judge(variables: Mapping[str, Any]) -> float:
        return float(opened.experiment.evaluate(dict(variables), source).metrics[metric])

    return metric, direction, judge
