"""Sweeps with trainings that only write a result: states, locks, signals, the winner's test."""

import json
import math
import shlex
import subprocess
import sys

import pytest

from tests.support.finished_runs import write_run
from vit_jax.cli import main
from vit_jax.errors import UserError
from vit_jax.studies.sweep import outcome as outcomes
from vit_jax.studies.sweep import plan as plans
from vit_jax.studies.sweep import running
from vit_jax.studies.sweep.asking import Asking
from vit_jax.studies.sweep.locks import tried
from vit_jax.studies.sweep.plan import Plan, based, open_plan, read_plan
from vit_jax.studies.sweep.running import Sweep, environment, in_short

TRAIN = """
import json, os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
settings = json.loads(sys.argv[2])
rate = float(settings["optimizer.learning_rate"])
{more}
line = {{"kind": "result", "step": 6, "epoch": 1.0, "split": "test", "accuracy": 1 - rate}}
(folder / "metrics.jsonl").write_text(json.dumps(line) + "\\n")
"""
OVER = ("optimizer.learning_rate=0.1,0.2", "seed=0,1")


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Begins a sweep whose trainings are a short script; `more` is what it does first."""
    monkeypatch.setattr(plans, "_checked", lambda *_: ("accuracy", "max"))

    def make(more="", over=OVER, **fields):
        def command(plan, trial):
            script, settings = TRAIN.format(more=more), json.dumps(dict(trial.settings))
            return [sys.executable, "-c", script, str(trial.folder), settings]

        monkeypatch.setattr(running, "command", command)
        plan = open_plan(Plan("digits", (), over, **fields), tmp_path / "sweep")
        said = []
        sweep = Sweep(plan, tmp_path / "sweep", said.append)
        sweep.said = said
        return sweep

    return make


def test_every_setting_is_trained_with_every_seed(begin):
    sweep = begin()
    assert sweep.train(jobs=2)
    assert in_short(sweep.trials()) == "4 trials: 4 finished"
    # The folders of a setting are in a row, and its first seed is trained before the second.
    assert [one.folder.name for one in sweep.trials()] == ["000", "002", "001", "003"]
    assert [one.settings["seed"] for one in sweep.trials()] == ["0", "0", "1", "1"]
    again = begin("raise SystemExit(1)")
    assert again.train() and again.said == []  # nothing is left to train


def test_failed_trials_are_kept_with_their_reason_and_tried_again_on_demand(begin):
    fails = "if rate == 0.2: print('error: training has diverged'); sys.exit(3)"
    sweep = begin(fails, over=OVER[:1])
    assert sweep.train()
    assert in_short(sweep.trials()) == "2 trials: 1 finished, 1 failed"
    assert sweep.trials()[1].state().reason == "training has diverged"
    again = begin(over=OVER[:1])
    assert again.train() and in_short(again.trials()) == "2 trials: 1 finished, 1 failed"
    assert again.train(retry=True) and in_short(again.trials()) == "2 trials: 2 finished"


def test_a_training_that_is_killed_has_failed(begin):
    sweep = begin("os.kill(os.getpid(), signal.SIGKILL)", over=("optimizer.learning_rate=0.1",))
    sweep.train()
    assert sweep.trials()[0].state() == ("failed", "it ended by SIGKILL")


def test_a_signal_stops_the_trials_and_the_same_sweep_goes_on(begin):
    waits = "signal.signal(15, lambda *_: sys.exit(75)); os.kill(os.getppid(), 15); time.sleep(60)"
    sweep = begin(waits)
    assert not sweep.train(jobs=2)
    assert in_short(sweep.trials()) == "4 trials: 4 open"
    assert begin("").train()


def test_a_trial_is_trained_by_one_process(begin):
    sweep = begin()
    with sweep.trials()[0].claimed() as lock:
        assert lock is not None
        other = begin()
        other.train()
    assert "other processes train 1 trial, 000;" in other.said[-1]
    assert in_short(sweep.trials()) == "4 trials: 3 finished, 1 open"


def test_the_lock_of_a_trial_outlives_its_sweep_as_long_as_the_training(tmp_path):
    waits = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with tried(tmp_path / "lock") as lock:
        training = subprocess.Popen(waits, stdin=subprocess.PIPE, pass_fds=(lock,))
    with tried(tmp_path / "lock") as again:  # the sweep has gone, its training has not
        assert again is None
    training.communicate()
    with tried(tmp_path / "lock") as again:
        assert again is not None


def test_bad_trials_are_stopped_early(begin, monkeypatch):
    monkeypatch.setattr(running, "_LOOK", 0.0)
    evaluates = """
line = {"kind": "evaluate", "step": 3, "epoch": 0.5, "split": "test", "accuracy": 1 - rate}
(folder / "metrics.jsonl").write_text(json.dumps(line) + "\\n")
signal.signal(15, lambda *_: sys.exit(75))
if rate > 0.5: time.sleep(60)
"""
    keeps = "".join(f"0.{number}," for number in range(1, 6)) + "0.9"
    sweep = begin(evaluates, over=(f"optimizer.learning_rate={keeps}",), pruner="median")
    with monkeypatch.context() as patched:
        patched.setattr(
            type(sweep.trials()[0]), "values", lambda self, _: {3: 1 - rate_of(self.settings)}
        )
        sweep.train()
    assert in_short(sweep.trials()) == "6 trials: 5 finished, 1 pruned"
    assert "worse than the median of 5" in sweep.trials()[-1].state().reason


def rate_of(settings):
    return float(settings["optimizer.learning_rate"])


def test_a_sweep_with_another_space_is_refused_with_the_difference(begin, tmp_path):
    begin()
    for changed, sentence in (
        (Plan("digits", (), ("optimizer.learning_rate=0.1", "seed=0,1")), "0.1,0.2 and not "),
        (Plan("digits", (), OVER[:1]), "seed=0,1 and not no seed"),
        (Plan("digits", (("batch_size", "8"),), OVER), "batch_size: 64 -> 8"),
        (Plan("digits", (), OVER, "random", trials=2), "--sampler=grid and not random"),
    ):
        with pytest.raises(UserError, match=sentence):
            open_plan(changed, tmp_path / "sweep")


def test_more_random_trials_are_added_to_the_same_sweep(begin):
    assert len(begin(sampler="random", trials=1).trials()) == 2  # with two seeds
    assert len(begin(sampler="random", trials=2).trials()) == 4


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"over": ()}, "nothing to sweep over"),
        ({"over": ("optimizer.lerning_rate=1,2",)}, "did you mean 'optimizer.learning_rate'"),
        ({"over": ("optimizer.learning_rate=1e-3,fast",)}, "learning_rate = 'fast' is invalid"),
        ({"over": ("batch_size=0..8",), "sampler": "random", "trials": 1}, "batch_size = 0"),
        ({"sampler": "random"}, "--trials=N"),
        ({"trials": 3}, "a grid trains all"),
        ({"overrides": (("seed", "4"),)}, "contradict each other"),
        ({"overrides": (("resume", "never"),)}, "resume = 'never'"),
        ({"over": ("seed=0,one",)}, "seed = 'one' is invalid"),
        ({"over": ("optimizer.learning_rate=1e-3,0.001",)}, "1e-3 and 0.001 are the same value"),
        ({"overrides": (("stop_after", "2"),)}, "stop_after = '2 evaluations' is not possible in"),
    ],
)
@pytest.mark.usefixtures("begin")
def test_mistakes_are_found_before_anything_runs(tmp_path, changes, sentence):
    folder = tmp_path / "mistakes"
    with pytest.raises(UserError, match=sentence):
        open_plan(Plan(**{"config": "digits", "overrides": (), "over": OVER} | changes), folder)
    assert not folder.exists()


def test_a_damaged_plan_is_refused(tmp_path):
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(UserError, match="sweep.json cannot be read"):
        read_plan(tmp_path)


def test_jobs_share_the_devices(monkeypatch):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert [environment(slot, 2)["CUDA_VISIBLE_DEVICES"] for slot in range(2)] == ["4", "5"]
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in environment(0, 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    assert environment(0, 3)["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.300"


def test_commands_are_written_and_nothing_runs(begin, tmp_path):
    sweep = begin()
    file = tmp_path / "commands.txt"
    arguments = ["--config=digits", f"--workdir={sweep.folder}", f"--commands={file}"]
    assert main(["sweep", *arguments, *(f"--over={one}" for one in OVER)]) == 0
    first, *others = map(shlex.split, file.read_text().splitlines())
    assert len(others) == 3 and first[:5] == ["python", "-m", "vit_jax", "train", "--config=digits"]
    assert {"--config.data.train=train[:90%]", "--config.data.test=train[90%:]"} <= set(first)
    assert in_short(sweep.trials()) == "4 trials: 4 open"


# ---------------------------------------------------------------------------------------- outcome


@pytest.fixture
def outcome(begin, monkeypatch):
    """A sweep of two settings and two seeds, whose second setting is the better one."""
    sweep = begin()
    for trial in sweep.trials():
        better = trial.group == 1
        rate, seed = rate_of(trial.settings), int(trial.settings["seed"])
        right = [True] * (6 + 2 * better + seed) + [False] * (4 - 2 * better - seed)
        write_run(trial.folder, right, optimizer__learning_rate=rate, seed=seed)
    looks = []

    def measure(runs, split):
        looks.append((len(runs), split))
        return [{"accuracy": 0.7, "examples": 10}, {"accuracy": 0.8, "examples": 10}]

    monkeypatch.setattr(outcomes, "measure", measure)
    read = outcomes.read_outcome(sweep.plan, sweep.folder, sweep.trials())
    return sweep, read, looks


def test_the_test_images_are_looked_at_once_for_the_winner(outcome, monkeypatch):
    _, read, looks = outcome
    assert read.setting(read.winner) == {"optimizer.learning_rate": "0.2"}
    tested = outcomes.test_winner(read)
    assert outcomes.test_winner(read) == tested and looks == [(2, "test")]
    lines = outcomes.winner_lines(read, tested)
    assert "85.00 ± 7.07 % on the validation images (train[90%:])" in lines[0]
    assert "75.00 ± 7.07 %" in lines[1] and "unbiased" not in lines[1]
    monkeypatch.setattr(
        outcomes, "write_page", lambda found, path, more: path.write_text(more[0].parts[1])
    )
    assert "75.00" in outcomes.write_outcome_page(read, tested).read_text()


def test_a_setting_with_a_failed_run_cannot_win_and_is_named(outcome):
    sweep, *_ = outcome
    lost = sweep.trials()[3]
    (lost.folder / "metrics.jsonl").unlink()
    lost.close("failed", "training has diverged")
    read = outcomes.read_outcome(sweep.plan, sweep.folder, sweep.trials())
    assert read.setting(read.winner) == {"optimizer.learning_rate": "0.1"}
    assert "training has diverged" in outcomes.lost_lines(read)[0]
    assert "1 of its runs gave no result: it cannot win" in outcomes.winner_lines(read, None)[0]


def test_a_winner_has_a_number_on_the_validation_images_and_perhaps_none_on_the_test(outcome):
    sweep, read, _ = outcome
    outcomes.test_winner(read)
    kept = sweep.folder / outcomes.TEST
    kept.write_text(kept.read_text().replace("0.7", "null"))
    assert math.isnan(outcomes.test_winner(read).spread("accuracy").mean)
    for trial in sweep.trials()[1:4:2]:  # of the better setting
        log = trial.folder / "metrics.jsonl"
        log.write_text(log.read_text().replace(', "accuracy": 0.', ', "accuracy": null, "was": 0.'))
    read = outcomes.read_outcome(sweep.plan, sweep.folder, sweep.trials())
    assert read.setting(read.winner) == {"optimizer.learning_rate": "0.1"}


def test_another_winner_after_more_trials_is_told_as_a_second_look(outcome):
    sweep, read, looks = outcome
    outcomes.test_winner(read)
    lost = sweep.trials()[3]
    (lost.folder / "metrics.jsonl").unlink()
    lost.close("failed", "")
    read = outcomes.read_outcome(sweep.plan, sweep.folder, sweep.trials())
    lines = outcomes.winner_lines(read, outcomes.test_winner(read))
    assert len(looks) == 2 and "2 winners by now" in lines[-1]


def test_an_unfinished_sweep_has_no_test_result(outcome):
    sweep, *_, looks = outcome
    (sweep.trials()[0].folder / "metrics.jsonl").unlink()
    read = outcomes.read_outcome(sweep.plan, sweep.folder, sweep.trials())
    assert outcomes.test_winner(read) is None and looks == []
    assert "1 trial not finished" in outcomes.winner_lines(read, None)[-1]


# ----------------------------------------------------------------------------------------- Optuna


def test_without_optuna_its_samplers_are_refused_in_a_sentence(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "optuna", None)
    arguments = ["--sampler=tpe", "--trials=2", "--over=batch_size=8,16", f"--workdir={tmp_path}"]
    assert main(["sweep", "--config=digits", *arguments]) == 2
    assert "pip install 'vit-jax[sweep]'" in capsys.readouterr().err


@pytest.mark.parity
def test_a_study_of_optuna_goes_on_where_it_stopped(begin):
    pytest.importorskip("optuna", reason="of the optional group sweep")
    over = ("optimizer.learning_rate=1e-4..1e-1:log", "batch_size=8..64", "seed=0,1")
    sweep = begin(over=over, sampler="tpe", trials=3)
    assert sweep.train()
    more = begin(over=over, sampler="tpe", trials=5)
    assert more.train() and in_short(more.trials()) == "10 trials: 10 finished"
    groups = Asking(more.plan, more.folder).groups()
    assert groups[:3] == sweep.asking.groups()[:3]
    assert len({json.dumps(one) for one in groups}) == 5  # no proposal is repeated
    states = [one.state.name for one in more.asking._study.trials]
    assert states == ["COMPLETE"] * 5
    assert more.asking._study.trials[0].value == pytest.approx(1 - rate_of(groups[0]))


@pytest.mark.parity
def test_a_proposal_counts_once_its_settings_are_complete(begin, monkeypatch):
    pytest.importorskip("optuna", reason="of the optional group sweep")
    over = ("optimizer.learning_rate=1e-4..1e-1:log", "batch_size=8..64")
    asking = begin(over=over, sampler="tpe", trials=2).asking
    other = Asking(asking._plan, begin(over=over, sampler="tpe", trials=2).folder)
    assert asking.ask()

    def killed(*_):
        assert len(other.groups()) == 1  # what another process sees in the meantime
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(asking, "_suggested", killed)
        asking.ask()
    assert other.ask() and not other.ask()
    assert [set(one) for one in other.groups()] == [{"optimizer.learning_rate", "batch_size"}] * 2


def test_the_base_of_a_plan_leaves_the_space_out():
    base = based(Plan("digits", (), OVER)).base
    assert "optimizer.learning_rate" not in base and base["batch_size"] == 64
