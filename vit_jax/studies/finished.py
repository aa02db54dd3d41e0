"""Finished runs, as studies read them: settings, result, and which test images are right."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from vit_jax.config import flatten
from vit_jax.config.schema import is_free
from vit_jax.csv_files import read_csv
from vit_jax.errors import UserError, nearest
from vit_jax.evaluation.metrics import metric_names
from vit_jax.runs import RunDir, run_folders
from vit_jax.tasks.registry import get_task
from vit_jax.text import counted, tell

_OF_THE_TEST = ("dataset", "data.test", "data.holdout", "data.split_seed")
_OF_A_FOLD = (*_OF_THE_TEST, "data.fold", "data.train", "data.group_column")
_LOWER_IS_BETTER = ("loss", "abs_rel", "sq_rel", "rmse", "rmse_log", "log10", "silog", "error")
NO_SETTINGS = ("seed", "evaluate.every", "evaluate.batch_size")


class Judged(NamedTuple):
    """Test images and which of them a model has right.

    images: the name of each, with its true class. right: of the same length.
    """

    images: tuple[str, ...]
    right: Bool[np.ndarray, " images"]


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """A run that has a result. settings: its configuration, by dotted keys."""

    run: RunDir
    settings: Mapping[str, Any]
    result: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Return the name of its folder."""
        return self.run.path.resolve().name

    @property
    def seed(self) -> int:
        """Return its seed."""
        return self.settings["seed"]

    @property
    def task(self) -> str:
        """Return the name of its task."""
        return self.settings["task"]

    @functools.cached_property
    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of its log."""
        return self.run.read_metrics()

    @functools.cached_property
    def judged(self) -> Judged | None:
        """Return which test images it has right; None for a task without one class an image."""
        path = self.run.figures / "predictions.csv"
        if not path.exists():
            return None
        try:
            rows = sorted(read_csv(path), key=lambda row: int(row["index"]))
            images = tuple(f"{row['image']}: {row['true']}" for row in rows)
            right = np.array([row["true"] == row["predicted"] for row in rows], bool)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{path} cannot be read ({error!r}); write it again with "
                f"python -m vit_jax report {self.run.path}"
            ) from error
        return Judged(images, right)

    @property
    def test(self) -> Any:
        """Return what the same test images have in common, for comparison."""
        if self.judged:
            return self.judged.images
        keys = _OF_A_FOLD if self.settings.get("data.fold") else _OF_THE_TEST
        return (self.result.get("examples"), *(self.settings.get(key) for key in keys))


def read_runs(paths: Sequence[str | Path]) -> list[FinishedRun]:
    """Return the finished runs of folders; a folder that is no run stands for all runs in it.

    Unfinished runs are left out, and told.

    Raises:
        UserError: a folder is missing, or there is no finished run.
    """
    found, unfinished = [], []
    for folder in dict.fromkeys(path for given in paths for path in _runs_of(Path(given))):
        run = RunDir(folder)
        result = run.result() if run.config_file.exists() else None
        if result is None:
            unfinished.append(str(folder))
        else:
            found.append(FinishedRun(run, dict(flatten(run.read_config())), result))
    if unfinished:
        tell(
            f"warning: {counted(len(unfinished), 'run')} without a result left out: "
            f"{', '.join(unfinished)}",
            error=True,
        )
    if not found:
        raise UserError(
            f"there is no finished run in {', '.join(map(str, paths))}; name run folders, or a "
            "folder of runs"
        )
    return found


def _runs_of(folder: Path) -> list[Path]:
    folder = folder.expanduser()
    if not folder.is_dir():
        siblings = [str(one) for one in folder.parent.glob("*/")]
        raise UserError(f"there is no folder {folder}{nearest(str(folder), siblings)}")
    if RunDir(folder).is_run():
        return [folder]
    inside = run_folders(folder)
    if not inside:
        raise UserError(
            f"{folder} is no run and has none in it; name run folders, or a folder of runs"
        )
    return inside


def differing(runs: Iterable[FinishedRun]) -> tuple[str, ...]:
    """Return the keys in which runs differ, but for the seed and keys without influence."""
    runs = list(runs)
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    return tuple(
        key
        for key in keys
        if key not in NO_SETTINGS
        and not is_free(key)
        and any(run.settings.get(key) != runs[0].settings.get(key) for run in runs)
    )


def main_metric(runs: Sequence[FinishedRun]) -> str:
    """Return the metric of the task that all runs have, else the loss."""
    of_task = _monitor(runs[0].task)[:1]
    usual = (*of_task, "accuracy", "mean_average_precision", "zero_shot_accuracy")
    for metric in (*usual, *metric_names([runs[0].result]), "loss"):
        if metric != "loss" and all(metric in run.result for run in runs):
            return metric
    return "loss"


def is_lower_better(metric: str, task: str = "") -> bool:
    """Return whether a smaller value is the better one.

    task: the name of the task, whose `monitor` decides if it is this metric; "": unknown.
    """
    monitor = _monitor(task)
    if metric in monitor[:1]:
        return monitor[1] == "min"
    return metric.endswith(_LOWER_IS_BETTER)


def _monitor(task: str) -> tuple[str, str] | tuple[()]:
    """Return the `monitor` of all tasks of a name; () if it depends on their settings."""
    monitor = getattr(get_task(task), "monitor", None) if task else None
    return monitor if isinstance(monitor, tuple) else ()
