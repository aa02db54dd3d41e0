"""Evolutionary search for the best subnets of a trained supernet, under a budget.

    found = search("runs/supernet", "runs/search", Budget(parameters=60_000))
    found[0].subnet, found[0].accuracy

Subnets are judged by the weights that they inherit, on validation images. The results are in
`search.jsonl`: a first line with the settings, and a line for each generation. A search that was
killed continues behind the last complete line and finds the same as one that was not.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from vit_jax.compress.search.evolution import Evolution
from vit_jax.compress.search.inherited import InheritedAccuracy
from vit_jax.errors import UserError, shown, writing
from vit_jax.models.supernet.cost import subnet_cost
from vit_jax.models.supernet.space import Subnet
from vit_jax.runs.derived import read_finished
from vit_jax.tasks.supernet import Supernet
from vit_jax.training.open_run import open_run

FILE = "search.jsonl"
SPLIT = "validation"

_SIZES = ("depths", "widths", "heads", "mlp_ratios")  # of a search space


@dataclass(frozen=True)
class Budget:
    """Most parameters, and most multiply-accumulates for one image; None: no limit."""

    parameters: int | None = None
    macs: int | None = None

    def allows(self, parameters: int, macs: int) -> bool:
        """Return whether a cost is within the budget."""
        limits = (self.parameters, parameters), (self.macs, macs)
        return all(most is None or cost <= most for most, cost in limits)


_NO_LIMIT = Budget()
_AS_AUTHORS = Evolution()


@dataclass(frozen=True)
class Judged:
    """Subnet with its result: correct predictions on so many images, parameters and MACs."""

    subnet: Subnet
    correct: int
    images: int
    parameters: int
    macs: int

    @property
    def accuracy(self) -> float:
        """Share of correct predictions."""
        return self.correct / self.images

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of JSON values."""
        return {**vars(self), "subnet": self.subnet.to_json()}

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> "Judged":
        """Return the result of a `to_json`."""
        return cls(**{**line, "subnet": Subnet.from_json(line["subnet"])})


def search(
    run: str | os.PathLike,
    folder: str | os.PathLike,
    budget: Budget = _NO_LIMIT,
    *,
    evaluations: int = 250,
    evolution: Evolution = _AS_AUTHORS,
    seed: int = 0,
    checkpoint: int | str = "last",
    raw: bool = False,
    at_once: int = 10,
    report: Callable[[int, Judged], None] = lambda done, best: None,
) -> list[Judged]:
    """Search a supernet, and return all subnets that were judged, best first.

    Equal accuracies are in the order of MACs, then of parameters.

    Args:
        run: a run of the task `supernet` with validation data.
        folder: output folder; a search with the same settings that was interrupted is resumed.
        evaluations: number of subnets to judge; fewer if no more are within the budget.
        seed: of the evolution.
        checkpoint, raw: of the run.
        at_once: subnets that are computed together; more of them take more memory.
        report: called after each generation, with the number of subnets and the best of them.

    Raises:
        UserError: no supernet, no validation data, no subnet within the budget, or a folder of
            another search.
    """
    opened = open_run(run)
    task = _supernet(run, opened.experiment.task)
    if SPLIT not in opened.experiment.sources:
        raise UserError(
            f"{run} has no validation data, which the search judges subnets by; train the supernet "
            "with --config.data.train='train[:80%]' --config.data.validation='train[80%:]'"
        )
    _check_budget(task, budget)
    _, _, variables, step = read_finished(run, checkpoint, raw=raw)
    settings = {
        "run": str(Path(run).expanduser().resolve()),
        "step": step,
        "raw": raw,
        "weights": _digest(variables),
        "space": {name: list(getattr(task.space, name)) for name in _SIZES},
        "per_block": task.space.per_block,
        "budget": vars(budget),
        "evolution": vars(evolution),
        "seed": seed,
    }
    log = Path(folder).expanduser() / FILE
    done = _open_log(log, settings)
    judge = InheritedAccuracy(opened, variables, SPLIT, at_once)

    def cost(subnet: Subnet):
        return subnet_cost(task.model, subnet)

    while len(done) < evaluations:
        generation = len(done) // evolution.population
        start = generation * evolution.population
        proposed = evolution.propose(
            task.space,
            lambda subnet: budget.allows(*cost(subnet)),
            [one.subnet for one in done[:start]],
            [one.subnet for one in ranked(done[:start])[: evolution.parents]],
            np.random.default_rng((seed, generation)),
        )
        subnets = proposed[len(done) - start : evaluations - start]
        if not subnets:
            break
        new = [
            Judged(subnet, correct, judge.images, *cost(subnet))
            for subnet, correct in zip(subnets, judge(subnets), strict=True)
        ]
        done += new
        _write_line(log, {"generation": generation, "subnets": [one.to_json() for one in new]})
        report(len(done), ranked(done)[0])
    if not done:
        raise UserError(
            f"no subnet of {run} within the budget was found; allow more --max-parameters or "
            "--max-macs"
        )
    return ranked(done)


def read_search(folder: str | os.PathLike) -> tuple[dict[str, Any], list[Judged]]:
    """Return the settings of a search, and the subnets that it has judged, best first.

    Raises:
        UserError: the folder holds no search.
    """
    log = Path(folder).expanduser() / FILE
    lines = _read_lines(log)
    if not lines:
        raise UserError(
            f"{folder} holds no search; python -m vit_jax autoformer-search RUN {folder} makes one"
        )
    return lines[0], ranked(_judged(lines))


def ranked(judged: Sequence[Judged]) -> list[Judged]:
    """Return the results by accuracy, those that are equal by their cost; the rest in order."""
    return sorted(judged, key=lambda one: (-one.correct, one.macs, one.parameters))


def _digest(variables: dict[str, Any]) -> str:
    """Return a hash of the weights, by which a search knows its supernet."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(variables):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()[:16]


def _supernet(run: str | os.PathLike, task: Any) -> Supernet:
    if isinstance(task, Supernet):
        return task
    raise UserError(
        f"{run} is no supernet, so it has no subnets to search; train one with "
        "--config=autoformer/digits, or with --config.task=supernet"
    )


def _check_budget(task: Supernet, budget: Budget) -> None:
    """Raise UserError for a budget below the cost of the smallest subnet."""
    least = subnet_cost(task.model, task.space.smallest)
    for name in ("parameters", "macs"):
        most, needed = getattr(budget, name), getattr(least, name)
        if most is not None and most < needed:
            raise UserError(
                f"--max-{name}={most} is less than the {needed:,} {name} of the smallest subnet "
                f"({task.space.smallest}); allow at least as many"
            )


def _open_log(log: Path, settings: dict[str, Any]) -> list[Judged]:
    """Return the results of an interrupted search with the same settings; begin it otherwise."""
    lines = _read_lines(log)
    if not lines:
        with writing(log):
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("", encoding="utf-8")
        _write_line(log, settings)
        return []
    settings = json.loads(json.dumps(settings))
    for name in settings.keys() - {"run"}:  # it may have been moved
        if lines[0].get(name) != settings[name]:
            raise UserError(
                f"{log.parent} holds a search with another {name} ({shown(lines[0].get(name))}, "
                f"not {shown(settings[name])}); choose another output folder, or the same options"
            )
    # An incomplete last line would be continued by the next.
    with writing(log):
        draft = log.with_name(log.name + ".tmp")
        draft.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        os.replace(draft, log)
    return _judged(lines)


def _judged(lines: Sequence[dict[str, Any]]) -> list[Judged]:
    return [Judged.from_json(one) for line in lines[1:] for one in line["subnets"]]


def _read_lines(log: Path) -> list[dict[str, Any]]:
    """Return the lines of a search; an incomplete last line is left out."""
    if not log.exists():
        return []
    text = log.read_text("utf-8", errors="replace")
    lines = text.split("\n")[:-1]
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise UserError(f"{log} is damaged ({error}); restore or remove it") from error


def _write_line(log: Path, line: dict[str, Any]) -> None:
    with writing(log), log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())
