"""Plan of a sweep, `sweep.json` in its folder: configuration, space, sampler and splits.

Everything about a trial follows from the plan and its number, so that any process can train it.
"""

import dataclasses
import functools
import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from vit_jax.config import default_config, differences, flatten, load_config
from vit_jax.errors import UserError
from vit_jax.runs.lock import make_folder
from vit_jax.studies.finished import is_lower_better
from vit_jax.studies.sweep import space as spaces
from vit_jax.studies.sweep.held_out import Splits, splits_of
from vit_jax.studies.sweep.json_files import write_json
from vit_jax.studies.sweep.locks import locked
from vit_jax.text import to_json

GRID, RANDOM, NONE, MEDIAN = "grid", "random", "none", "median"
SAMPLERS = (GRID, RANDOM, "tpe", "cmaes", "gp", "qmc")  # those after the second are Optuna's
PRUNERS = (NONE, MEDIAN)
FILE, LOCK = "sweep.json", "sweep.lock"


@dataclasses.dataclass(frozen=True)
class Plan:
    """Plan of a sweep: all that its trials follow from.

    config, overrides: as of `train`. over: texts of the space, see `space.parse_space`.
    sampler, pruner: of `SAMPLERS` and `PRUNERS`. seed: of the sampler. trials: number of settings
    that it draws; 0 for a grid. splits: those of each trial; None: found by `complete`. base: the
    resolved configuration of the first setting, without the keys of the space. metric,
    lower_is_better: what is compared.
    """

    config: str
    overrides: tuple[tuple[str, str], ...]
    over: tuple[str, ...]
    sampler: str = GRID
    seed: int = 0
    trials: int = 0
    pruner: str = NONE
    splits: Splits | None = None
    base: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    metric: str = ""
    lower_is_better: bool = False

    @functools.cached_property
    def space(self) -> spaces.Space:
        """Values and ranges by key."""
        return spaces.parse_space(self.over)

    @functools.cached_property
    def seeds(self) -> tuple[str, ...]:
        """Seeds of every setting; a single empty one is that of the configuration."""
        return spaces.seeds_of(self.space) or ("",)

    @property
    def asks(self) -> bool:
        """Return whether settings depend on earlier results, so that they are not known before."""
        return self.sampler not in (GRID, RANDOM)

    @functools.cached_property
    def drawn(self) -> list[dict[str, str]]:
        """Settings of a grid or of random draws, without the seed."""
        if self.sampler == GRID:
            return spaces.grid(self.space)
        return spaces.drawn(self.space, self.seed, self.trials)

    def first(self) -> dict[str, str]:
        """Return the setting with the first value of each key."""
        seed = {spaces.SEED: self.seeds[0]} if self.seeds[0] else {}
        return {key: one.tried[0] for key, one in self.space.items()} | seed

    def variants(self, seeds: bool = True) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
        """Yield settings in which each value of each key occurs, with what differs in them.

        seeds: whether each seed occurs too, in place of the first alone.
        """
        first = self.first()
        yield first, first
        for key, values in self.space.items():
            for text in values.tried if seeds or key != spaces.SEED else ():
                if text != first[key]:
                    yield first | {key: text}, {key: text}

    def arguments(self, settings: Mapping[str, str], folder: Path) -> list[str]:
        """Return the arguments of the command `train` for a trial."""
        pairs = [*self.overrides, *self.splits.overrides(), *settings.items()]
        keys = [f"--config.{key}={value}" for key, value in dict(pairs).items()]
        return ["train", f"--config={self.config}", f"--workdir={folder}", *keys]

    def command(self, settings: Mapping[str, str], folder: Path) -> str:
        """Return the line of a shell that trains a trial."""
        return shlex.join(["python", "-m", "vit_jax", *self.arguments(settings, folder)])

    def load(self, settings: Mapping[str, str]) -> ConfigDict:
        """Return the configuration of a setting with its own splits.

        Raises:
            UserError: a key does not exist, or a value is invalid.
        """
        return load_config(self.config, [*self.overrides, *settings.items()])

    # ------------------------------------------------------------------------------ its file

    def write(self, folder: Path) -> None:
        """Write it into the folder of the sweep."""
        write_json(folder / FILE, dataclasses.asdict(self))

    def check_same(self, old: "Plan", folder: Path) -> None:
        """Raise UserError if the sweep in a folder was started with another plan."""
        changes = list(_changes(old, self)) or _changes_of_base(old.base, self.base)
        if changes:
            raise UserError(
                f"the sweep in {folder} was started with {'; '.join(changes)}; use the same, or "
                "another --workdir"
            )


def read_plan(folder: Path) -> Plan | None:
    """Return the plan of a folder; None if it has none.

    Raises:
        UserError: the file is damaged.
    """
    path = folder / FILE
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        kept |= {"overrides": tuple(map(tuple, kept["overrides"])), "over": tuple(kept["over"])}
        return Plan(**kept | {"splits": Splits(*kept["splits"])})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} cannot be read ({error!r}); restore it from a copy") from error


def open_plan(plan: Plan, folder: Path, metric: str = "") -> Plan:
    """Return the plan of the sweep in a folder, which is begun with this plan if there is none.

    metric: by which trials are compared; "": that of the task, or the one the sweep began with.

    Raises:
        UserError: the plan is invalid, or the folder has a sweep with another one.
    """
    begun = complete(plan, metric) if read_plan(folder) is None else None  # before a folder is made
    make_folder(folder)
    with locked(folder / LOCK):
        old = read_plan(folder)
        if old is None:
            plan = begun or complete(plan, metric)
        else:
            based(plan).check_same(old, folder)
            plan = dataclasses.replace(old, trials=max(old.trials, plan.trials))
            if metric not in ("", old.metric):
                if old.asks or old.pruner != NONE:
                    raise UserError(
                        f"the sweep in {folder} chooses its trials by {old.metric}, not by "
                        f"{metric}; omit --metric, or use another --workdir"
                    )
                lower = is_lower_better(metric, old.base.get("task", ""))
                return dataclasses.replace(plan, metric=metric, lower_is_better=lower)
        if plan != old:
            plan.write(folder)
    return plan


def complete(plan: Plan, metric: str = "") -> Plan:
    """Return the plan of what was asked for, with splits, metric and base, after all checks.

    The configuration of every value of the space is checked, and its experiment built on the CPU,
    without training.

    Raises:
        UserError: there is nothing to sweep over, a key does not exist, or a value is invalid.
    """
    if not plan.space:
        raise UserError("there is nothing to sweep over; use --over KEY=VALUE,VALUE,...")
    if plan.sampler == GRID and plan.trials:
        raise UserError(
            f"--trials={plan.trials} is for --sampler=random and Optuna's; a grid trains all "
            "settings of the space"
        )
    if plan.sampler != GRID and plan.trials < 1:
        raise UserError(f"--sampler={plan.sampler} needs the number of settings: --trials=N")
    if not plan.asks:
        _ = plan.drawn  # finds a range in a grid
    plan = based(plan)
    for key, _ in plan.overrides:
        if key in plan.space:
            raise UserError(f"--config.{key} and --over {key} contradict each other; use one")
    monitor = ("", "")
    for settings, changed in plan.variants(seeds=False):
        monitor = _checked(plan, settings, changed)
    metric = metric or monitor[0]
    lower = is_lower_better(metric) if metric != monitor[0] else monitor[1] == "min"
    return dataclasses.replace(plan, metric=metric, lower_is_better=lower)


def based(plan: Plan) -> Plan:
    """Return a plan with its splits and the base of its configuration.

    Raises:
        UserError: a key does not exist, or a value is invalid.
    """
    given: dict[tuple[str, str], str] = {}
    for settings, changed in plan.variants():
        config = plan.load(settings)
        values = dict(flatten(config))
        for key, text in changed.items():
            value = repr(values.get(key, text))
            if (other := given.setdefault((key, value), text)) != text:
                raise UserError(
                    f"--over {key}: {other} and {text} are the same value; list each value once"
                )
        if config.stop_after and plan.splits is None:
            raise UserError(
                f"stop_after = {config.stop_after!r} is not possible in a sweep, whose trials keep "
                "the validation images for the choice; omit it, or use --pruner=median"
            )
    config = plan.load(plan.first())
    if config.resume != "auto":
        raise UserError(
            f"resume = {config.resume!r} is not possible in a sweep, whose trials are resumed; "
            "omit it, or choose another --workdir to start afresh"
        )
    splits = plan.splits or splits_of(config, swept="data.train" in plan.space)
    base = {key: value for key, value in flatten(config) if key not in plan.space}
    return dataclasses.replace(plan, splits=splits, base=json.loads(to_json(base)))


def _checked(
    plan: Plan, settings: Mapping[str, str], changed: Mapping[str, str]
) -> tuple[str, str]:
    """Build the experiment of a setting, and return the monitor of its task."""
    from vit_jax.training.setup.build import build

    config = plan.load({**dict(plan.splits.overrides()), **settings})
    config.device, config.mesh = "cpu", default_config().mesh
    try:
        return build(config).task.monitor
    except UserError as error:
        raise UserError(f"--over {spaces.in_words(changed)}: {error}") from error


def _changes(old: Plan, new: Plan) -> Iterator[str]:
    """Yield what differs between two plans, each in words: the old one's, and the new one's."""
    before, after = ({key: str(x) for key, x in plan.space.items()} for plan in (old, new))
    for key in dict.fromkeys((*before, *after)):
        if before.get(key) != after.get(key):
            was, now = (f"{key}={of[key]}" if key in of else f"no {key}" for of in (before, after))
            yield f"another space, {was} and not {now}"
    if old.config != new.config:
        yield f"--config={old.config} and not {new.config}"
    for name in ("sampler", "seed", "pruner"):
        was, now = getattr(old, name), getattr(new, name)
        if was != now:
            yield f"--{name}={was} and not {now}"


def _changes_of_base(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    changed = differences(old, json.loads(to_json(dict(new))))
    return [f"another configuration, {line}" for line in changed]
