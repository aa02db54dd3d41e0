"""Settings that Optuna proposes, from the results so far; its study is a journal in the folder."""

import importlib
import itertools
import warnings
from pathlib import Path
from typing import Any

from vit_jax.errors import UserError
from vit_jax.studies.sweep.plan import Plan
from vit_jax.studies.sweep.space import SEED, Range

JOURNAL = "optuna.journal"

_CLASSES = {
    "tpe": "TPESampler",
    "cmaes": "CmaEsSampler",
    "gp": "GPSampler",
    "qmc": "QMCSampler",
}
_SETTINGS = "settings"  # the attribute of a study's trial with its values as texts


def import_optuna(sampler: str) -> Any:
    """Return the module optuna; UserError if it is not installed."""
    try:
        optuna = importlib.import_module("optuna")
    except ImportError as error:
        raise UserError(
            f"--sampler={sampler} is Optuna's, which is not installed: pip install "
            "'vit-jax[sweep]'; or use --sampler=random"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


class Asking:
    """The study of a sweep. Its methods are called while the lock of the sweep is held."""

    def __init__(self, plan: Plan, folder: Path):
        self._optuna = import_optuna(plan.sampler)
        self._plan = plan
        journal = self._optuna.storages.journal
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # parts of Optuna warn that they are experimental
            self._study = self._optuna.create_study(
                study_name="sweep",
                storage=self._optuna.storages.JournalStorage(
                    journal.JournalFileBackend(str(folder / JOURNAL))
                ),
                direction="minimize" if plan.lower_is_better else "maximize",
                load_if_exists=True,
            )

    def groups(self) -> list[dict[str, str]]:
        """Return the settings so far, by number, without the seed.

        One that another process is about to add, or was when it was killed, is not among them.
        """
        found = [one.user_attrs.get(_SETTINGS) for one in self._study.get_trials(deepcopy=False)]
        return list(itertools.takewhile(lambda settings: settings is not None, found))

    def ask(self) -> bool:
        """Add a setting; False if there are as many as planned.

        The random numbers of a proposal follow from the seed and its number, so that a sweep that
        is resumed does not repeat its first proposals.
        """
        number = len(self.groups())
        if number >= self._plan.trials:
            return False
        begun = self._study.get_trials(deepcopy=False)[number:]  # by a process that was killed
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                make = getattr(self._optuna.samplers, _CLASSES[self._plan.sampler])
                # A quasi-random sequence is one for the whole study.
                more = 0 if self._plan.sampler == "qmc" else number
                self._study.sampler = make(seed=self._plan.seed * 100_003 + more)
                trial = self._optuna.trial.Trial(self._study, begun[0]._trial_id) if begun else None
                trial = trial or self._study.ask()
                settings = {
                    key: self._suggested(trial, key) for key in self._plan.space if key != SEED
                }
            except ImportError as error:
                raise UserError(
                    f"--sampler={self._plan.sampler} needs another package: {error}; install it, "
                    "or use --sampler=tpe"
                ) from error
        trial.set_user_attr(_SETTINGS, settings)
        return True

    def tell(self, number: int, value: float | None, pruned: bool = False) -> None:
        """Report the result of a setting; None: it failed, or was pruned."""
        states = self._optuna.trial.TrialState
        if value is not None:
            self._study.tell(number, value, skip_if_finished=True)
        else:
            state = states.PRUNED if pruned else states.FAIL
            self._study.tell(number, state=state, skip_if_finished=True)

    def _suggested(self, trial: Any, key: str) -> str:
        values = self._plan.space[key]
        if not isinstance(values, Range):
            return trial.suggest_categorical(key, values.texts)
        if values.whole:
            return values.text(
                trial.suggest_int(key, int(values.low), int(values.high), log=values.log)
            )
        return values.text(trial.suggest_float(key, values.low, values.high, log=values.log))
