"""Trials of a sweep: run folders below its folder, each with a setting and a seed."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from vit_jax.errors import UserError
from vit_jax.runs import EVALUATE, RunDir
from vit_jax.studies.sweep.json_files import write_json
from vit_jax.studies.sweep.locks import tried
from vit_jax.studies.sweep.plan import Plan
from vit_jax.studies.sweep.space import SEED

FINISHED, FAILED, PRUNED, OPEN = "finished", "failed", "pruned", "open"
LOG = "train.log"  # in the run folder: all that the training has printed

_FILE, _LOCK = "trial.json", "trial.lock"


class State(NamedTuple):
    """State of a trial: finished, failed, pruned or open, and why."""

    name: str
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Trial:
    """A run of a sweep. group: number of its setting. settings: values by key, with the seed."""

    number: int
    group: int
    settings: Mapping[str, str]
    folder: Path

    @property
    def run(self) -> RunDir:
        """Return its run folder."""
        return RunDir(self.folder)

    def state(self) -> State:
        """Return the state: that in its file unless the run has a result."""
        if self.run.result() is not None:
            return State(FINISHED)
        try:
            kept = json.loads((self.folder / _FILE).read_text(encoding="utf-8"))
            return State(kept["state"], kept["reason"])
        except FileNotFoundError:
            return State(OPEN)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{self.folder / _FILE} cannot be read ({error!r}); remove it to train again"
            ) from error

    def close(self, state: str, reason: str) -> None:
        """Keep that it failed or was pruned, and why."""
        kept = {"state": state, "reason": reason, "settings": dict(self.settings)}
        write_json(self.folder / _FILE, kept)

    def reopen(self) -> None:
        """Forget that it failed; its run goes on from its last checkpoint."""
        (self.folder / _FILE).unlink(missing_ok=True)

    @contextlib.contextmanager
    def claimed(self) -> Iterator[int | None]:
        """Yield the descriptor of its lock; None if another process trains it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with tried(self.folder / _LOCK) as lock:
            yield lock

    def values(self, metric: str) -> dict[int, float]:
        """Return the metric of the evaluations so far, by step."""
        return {
            line["step"]: float(line[metric])
            for line in self.run.read_metrics()
            if line["kind"] == EVALUATE and metric in line
        }


def trials_of(plan: Plan, folder: Path, groups: list[dict[str, str]]) -> list[Trial]:
    """Return the trials of settings, the first seed of every setting first.

    groups: the settings, without the seed. Numbers name the folders, those of a setting in a row.
    """
    found = []
    for place, seed in enumerate(plan.seeds):
        for group, setting in enumerate(groups):
            number = group * len(plan.seeds) + place
            settings = {**setting, **({SEED: seed} if seed else {})}
            found.append(Trial(number, group, settings, folder / f"{number:03d}"))
    return found
