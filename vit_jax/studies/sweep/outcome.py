"""Outcome of a sweep: the comparison by validation images, the winner, and its test result.

The test images are looked at once, for the winner; `test.json` in the folder keeps the result.
"""

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit_jax.analysis.report.html import Section, paragraph, table, wide
from vit_jax.errors import UserError
from vit_jax.evaluation.metrics import shown_name
from vit_jax.studies.apart import apart
from vit_jax.studies.comparison import Arm, Comparison, best_arm, compare
from vit_jax.studies.comparison_page import write_page
from vit_jax.studies.finished import FinishedRun, read_runs
from vit_jax.studies.statistics import Spread, shown_spread, spread
from vit_jax.studies.sweep.json_files import write_json
from vit_jax.studies.sweep.locks import locked
from vit_jax.studies.sweep.plan import LOCK, Plan
from vit_jax.studies.sweep.space import SEED, in_words
from vit_jax.studies.sweep.trial import FAILED, FINISHED, OPEN, PRUNED, State, Trial
from vit_jax.text import counted

PAGE, TEST = "comparison.html", "test.json"


@dataclass(frozen=True)
class Outcome:
    """State of a sweep and its results so far.

    states: of every trial. found: the finished trials as arms; None without any.
    """

    plan: Plan
    folder: Path
    states: Mapping[Trial, State]
    found: Comparison | None

    def trials(self, state: str) -> list[Trial]:
        """Return the trials in a state."""
        return [trial for trial, one in self.states.items() if one.name == state]

    @property
    def complete(self) -> bool:
        """Return whether no trial is open."""
        return not self.trials(OPEN)

    def lost(self, arm: Arm) -> list[Trial]:
        """Return the trials of an arm's setting that have no result."""
        groups = {self._of(run).group for run in arm.runs}
        return [
            trial
            for trial, state in self.states.items()
            if trial.group in groups and state.name != FINISHED
        ]

    def setting(self, arm: Arm) -> dict[str, str]:
        """Return the setting of an arm as texts, without the seed."""
        settings = self._of(arm.runs[0]).settings
        return {key: text for key, text in settings.items() if key != SEED}

    @property
    def winner(self) -> Arm | None:
        """Return the best arm of those of which all runs have a result; None without any."""
        whole = [arm for arm in self.found.arms if not self.lost(arm)] if self.found else []
        return best_arm(whole, self.plan.metric, self.plan.lower_is_better)

    def _of(self, run: FinishedRun) -> Trial:
        return self._by_path[run.run.path.resolve()]

    @functools.cached_property
    def _by_path(self) -> dict[Path, Trial]:
        return {trial.folder.resolve(): trial for trial in self.states}


def read_outcome(plan: Plan, folder: Path, trials: Sequence[Trial]) -> Outcome:
    """Return what the trials of a sweep have given so far.

    Raises:
        UserError: the finished trials do not have the metric.
    """
    states = {trial: trial.state() for trial in trials}
    done = [str(trial.folder) for trial, state in states.items() if state.name == FINISHED]
    found = compare(read_runs(done), plan.metric) if done else None
    return Outcome(plan, folder, states, found)


# ------------------------------------------------------------------------------------- test images


@dataclass(frozen=True)
class Tested:
    """Results of a setting on the test images. runs: metrics by the name of the trial's folder."""

    settings: Mapping[str, str]
    split: str
    runs: Mapping[str, Mapping[str, Any]]

    def spread(self, metric: str) -> Spread:
        """Return mean and spread of a metric over the runs."""
        values = [metrics[metric] for metrics in self.runs.values()]
        return spread([math.nan if value is None else value for value in values])  # null of JSON


def tested_before(folder: Path) -> list[Tested]:
    """Return the results on the test images so far, the last one last.

    Raises:
        UserError: their file is damaged.
    """
    path = folder / TEST
    try:
        return [Tested(**one) for one in json.loads(path.read_text(encoding="utf-8"))["tested"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read ({error!r}); restore it from a copy") from error


def test_winner(outcome: Outcome) -> Tested | None:
    """Return the result of the winner on the test images, computed unless it is kept.

    None if trials are open, or there is no winner.

    Raises:
        UserError: the test images cannot be read.
    """
    winner = outcome.winner
    if winner is None or not outcome.complete:
        return None
    runs = sorted(run.run.path for run in winner.runs)
    settings = outcome.setting(winner)
    with locked(outcome.folder / LOCK):
        before = tested_before(outcome.folder)
        for tested in before:
            same = dict(tested.settings) == settings
            if same and list(tested.runs) == [run.name for run in runs]:
                return tested
        split = outcome.plan.splits.test
        metrics = measure([str(run) for run in runs], split)
        by_run = dict(zip((run.name for run in runs), metrics, strict=True))
        tested = Tested(settings, split, by_run)
        kept = {"tested": [vars(one) for one in (*before, tested)]}
        write_json(outcome.folder / TEST, kept)
    return tested


def measure(runs: Sequence[str], split: str) -> list[dict[str, Any]]:
    """Return the metrics of runs on a split."""
    return apart(_measured, list(runs), split)


def _measured(runs: Sequence[str], split: str) -> list[dict[str, Any]]:
    from vit_jax.training.open_run import open_run

    found = []
    for run in runs:
        opened = open_run(run, test=split)
        variables, step = opened.run.read_variables()
        result = opened.experiment.evaluate(variables, opened.source("test"))
        found.append({"step": step, **result.metrics})
    return found


# ------------------------------------------------------------------------------------------- words


def lost_lines(outcome: Outcome) -> list[str]:
    """Return a sentence on each trial that failed or was stopped early, with the reason."""
    verbs = {FAILED: "failed", PRUNED: "was stopped early"}
    return [
        f"{trial.folder} ({in_words(trial.settings)}) {verbs[state.name]}: {state.reason}"
        for trial, state in outcome.states.items()
        if state.name in verbs
    ]


def winner_lines(outcome: Outcome, tested: Tested | None) -> list[str]:
    """Return sentences on open trials, on the winner and on its test result."""
    plan, winner, lines = outcome.plan, outcome.winner, []
    unfinished = counted(len(outcome.trials(OPEN)), "trial")
    if outcome.found is None:
        return [f"no trial has a result yet; {unfinished} not finished"]
    best = outcome.found.best
    if lost := outcome.lost(best):
        lines.append(
            f"{in_words(outcome.setting(best))} has the best mean, of "
            f"{counted(len(best.runs), 'run')}, but {len(lost)} of its runs gave no result: it "
            "cannot win"
        )
    if not outcome.complete:
        return [
            *lines,
            f"{unfinished} not finished; the same command goes on with what nobody trains",
        ]
    if winner is None:
        return [*lines, "no setting has a number as the result of every run: there is no winner"]
    lines.append(
        f"winner: {in_words(outcome.setting(winner))}, {shown_name(plan.metric)} "
        f"{shown_spread(plan.metric, winner.spread(plan.metric))} on the validation images "
        f"({plan.splits.validation})"
    )
    return [*lines, *([_test_sentence(outcome, tested)] if tested else [])]


def _test_sentence(outcome: Outcome, tested: Tested) -> str:
    metric, examples = outcome.plan.metric, next(iter(tested.runs.values())).get("examples", 0)
    looks = len(tested_before(outcome.folder))
    again = (
        f"; these images were looked at for {looks} winners by now, so that this is no longer an "
        "unbiased estimate"
    )
    return (
        f"test ({tested.split}, {counted(examples, 'image')}): {shown_name(metric)} "
        f"{shown_spread(metric, tested.spread(metric))}, kept in {outcome.folder / TEST}"
        f"{again if looks > 1 else ''}"
    )


def write_outcome_page(outcome: Outcome, tested: Tested | None) -> Path:
    """Write the page of the comparison, with the winner and the trials without a result."""
    rows = [
        (trial.folder.name, in_words(trial.settings), state.name, state.reason or "-")
        for trial, state in outcome.states.items()
        if state.name != FINISHED
    ]
    sections = [Section("Winner", [paragraph(x) for x in winner_lines(outcome, tested)])]
    if rows:
        headings = ("Trial", "Setting", "State", "Reason")
        sections.append(Section("Trials without a result", [wide(table(rows, headings))]))
    space = [(key, str(values)) for key, values in outcome.plan.space.items()]
    sections.append(Section("Space", [table([*space, ("sampler", outcome.plan.sampler)])]))
    path = outcome.folder / PAGE
    write_page(outcome.found, path, more=sections)
    return path


def to_dict(outcome: Outcome, tested: Tested | None) -> dict[str, Any]:
    """Return everything as JSON values."""
    winner = outcome.winner if outcome.complete else None
    return {
        "comparison": outcome.found and outcome.found.to_dict(),
        "trials": [
            {
                "folder": str(trial.folder),
                "settings": dict(trial.settings),
                "state": state.name,
                **({"reason": state.reason} if state.reason else {}),
            }
            for trial, state in outcome.states.items()
        ],
        "winner": winner and outcome.setting(winner),
        "test": tested and vars(tested),
    }
