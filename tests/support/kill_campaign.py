"""Runs that are killed again and again: python kill_campaign.py FOLDER --kills=20 --settings=ema

For each setting, trains once undisturbed and then runs that are killed, or stopped by a signal, at
random moments and resumed until they end. Each must equal the undisturbed one bit for bit. Prints a
line for each setting, and ends with code 1 where one differs.

One process imports everything and forks for each training, which then costs seconds. It must itself
never ask JAX for devices.
"""

import argparse
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import tests.integration.training.test_processes  # noqa: E402
from tests.conftest import TINY  # noqa: E402
from tests.support.comparing import assert_same_run  # noqa: E402
from tests.support.phased_run import announce  # noqa: E402
from vit_jax import cli  # noqa: E402
from vit_jax.analysis.monitoring import monitor  # noqa: E402, F401
from vit_jax.analysis.report import run_report  # noqa: E402, F401
from vit_jax.commands import train  # noqa: E402, F401
from vit_jax.data.sources import digits  # noqa: E402
from vit_jax.runs import RunDir  # noqa: E402
from vit_jax.startup import leave_on_signals  # noqa: E402

STEPS = 24
PATIENCE = 300  # seconds until a training counts as one that hangs
PHASES = ("start-up", "compilation", "step", "saving", "evaluation", "logging")
LONGEST = {"start-up": 2.5, "compilation": 0.5}  # seconds that a kill comes after a phase begins
COMMON = {
    **TINY,
    "duration": f"{STEPS} steps",
    "model.mlp_dropout": "0.1",
    "optimizer.learning_rate": "0.01",
    "log.every": "2",
    "evaluate.every": "4",
    "evaluate.batch_size": "96",
    "checkpoint.every": "3",
}
VALIDATION = {"data.train": "train[:90%]", "data.validation": "train[90%:]"}
SETTINGS = {
    "plain": {},
    "ema_decay": {"ema_decay": "0.9"},
    "accumulate_steps": {"accumulate_steps": "2"},
    "muon-fsdp": {"optimizer.name": "muon", "mesh.fsdp": "2"},
    "tensor": {"mesh.tensor": "2"},
    "balanced-mixup": {"data.sampling": "balanced", "augment.mixup": "0.5"},
    "best": {**VALIDATION, "evaluate.every": "2", "checkpoint.keep": "1"},
    "bfloat16": {"optimizer.moment_dtype": "bfloat16"},
    "two-processes": {"model.drop_path": "0.1"},
    "signals": {"ema_decay": "0.9", **VALIDATION},
}
DEVICES = {"muon-fsdp": 2, "tensor": 2}
# Exit codes of what was disturbed: a process may also end because the other one has.
CODES = {"signals": {75}, "two-processes": {-signal.SIGKILL, -signal.SIGABRT, 1, 2}}
STOPS = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)


class Training:
    """A training in forked processes, one or two, and what it is doing."""

    def __init__(self, setting: str, workdir: Path, data: Path, compiled: Path):
        self.workdir = workdir
        reading, writing = os.pipe()
        port = tests.integration.training.test_processes.free_port()
        count = 2 if setting == "two-processes" else 1
        self.pids = []
        for process in range(count):
            flags = [f"--coordinator=localhost:{port}", "--processes=2", f"--process={process}"]
            arguments = ["train", "--config=configs/digits.py", f"--workdir={workdir}"]
            arguments += flags if count > 1 else []
            changes = {**COMMON, **SETTINGS[setting], "data.dir": str(data)}
            arguments += [f"--config.{key}={value}" for key, value in changes.items()]
            self.pids.append(os.fork())
            if self.pids[-1] == 0:
                os.close(reading)
                say = writing if process == 0 else os.open(os.devnull, os.O_WRONLY)
                _be_trained(arguments, DEVICES.get(setting, 1), say, workdir, compiled)
        os.close(writing)
        self._phases = os.fdopen(reading)

    def phases(self):
        """Phases as they begin; they end with the process."""
        yield from (line.strip() for line in self._phases)

    def send(self, number: int, rng: random.Random) -> None:
        """Sends a signal to all its processes, one shortly after the other."""
        for pid in self.pids:
            os.kill(pid, number)
            if len(self.pids) > 1:
                time.sleep(rng.uniform(0, 0.05))

    def ended(self) -> list[int]:
        """Exit codes; negative ones are signals."""
        return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in self.pids]


def _be_trained(arguments, devices, say, workdir, compiled) -> None:
    """Trains in this process, which is a forked one, and ends it."""
    code = 99
    try:
        signal.alarm(PATIENCE)
        log = os.open(f"{workdir}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        import jax

        jax.config.update("jax_compilation_cache_dir", str(compiled))
        os.environ["XLA_FLAGS"] += f" --xla_force_host_platform_device_count={devices}"
        announce(lambda phase: os.write(say, f"{phase}\n".encode()))
        leave_on_signals()
        os.write(say, b"start-up\n")
        code = cli.main(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)


def disturb(training: Training, number: int, rng: random.Random) -> tuple[str, list[int]]:
    """Sends a signal in a random phase; returns the phase it came in and the exit codes."""
    wanted, count, phase = rng.choice(PHASES), rng.randint(1, 4), "start-up"
    if wanted in LONGEST:
        count = 1
    for phase in training.phases():
        count -= phase == wanted
        if count == 0:
            time.sleep(rng.uniform(0, LONGEST.get(wanted, 0.03)))
            training.send(number, rng)
            count = -1
    half_written = any(RunDir(training.workdir).checkpoints.glob("*tmp*"))
    return f"{phase}+saving" if half_written and phase != "saving" else phase, training.ended()


def failure(function, *arguments) -> str:
    """Calls a function in a forked process; returns what it raises, "" for nothing."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            function(*arguments)
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}"[:2000].encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return text


def check_readable(workdir: Path) -> None:
    """What a reader asks a run that was killed: its best checkpoint is always one on disk."""
    run = RunDir(workdir)
    steps, best = run.steps(), run.best_step()
    if best is not None and run.find_step("best") not in steps:
        raise AssertionError(f"best {best} of {steps}")
    marked = [line["step"] for line in run.read_metrics() if line.get("best")]
    if best is None and any(step <= max(steps, default=0) for step in marked):
        raise AssertionError(f"no best, and marks {marked} of {steps}")


def campaign(setting: str, kills: int, folder: Path, seed: int) -> bool:
    """Trains once undisturbed, and disturbed ones until `kills` have hit; returns whether equal."""
    rng = random.Random(f"{seed} {setting}")
    data = folder / "tfds"
    compiled = os.environ.get("JAX_COMPILATION_CACHE_DIR", folder / "compiled")
    whole, number, hit, faults = folder / f"{setting}-whole", 0, Counter(), []
    sent, codes = Counter(), Training(setting, whole, data, compiled).ended()
    if any(codes):
        faults.append(f"undisturbed: {codes}")
    while hit.total() < kills and len(faults) < 3:
        number += 1
        workdir, finished = folder / f"{setting}-{number}", False
        for attempt in range(30):
            if attempt == 29:
                faults.append(f"{workdir.name}: never ends")
            if hit.total() >= kills or attempt >= 8:
                codes = Training(setting, workdir, data, compiled).ended()
                finished = True
            else:
                last = rng.choice(STOPS) if setting == "signals" else signal.SIGKILL
                training = Training(setting, workdir, data, compiled)
                phase, codes = disturb(training, last, rng)
                finished = not any(codes)
                if not finished:
                    hit[phase] += 1
                    sent[last.name] += 1
                    if not set(codes) <= CODES.get(setting, {-signal.SIGKILL}):
                        faults.append(f"{workdir.name}: {last.name} in {phase} gave {codes}")
            try:
                check_readable(workdir)
            except Exception as error:
                faults.append(f"{workdir.name}: after {phase}: {error}")
            if finished:
                break
        if any(codes):
            faults.append(f"{workdir.name}: the last resume gave {codes}")
        elif difference := failure(assert_same_run, whole, workdir, STEPS):
            faults.append(f"{workdir.name}: {difference}")
    print(
        f"{setting}: {hit.total()} kills of {number} runs ({dict(sent)}), in {dict(hit)}; "
        + ("; ".join(faults) or "all equal"),
        flush=True,
    )
    return not faults


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.chdir(ROOT)
    options.folder.mkdir(parents=True, exist_ok=True)
    if error := failure(digits.prepare, options.folder / "tfds"):
        raise RuntimeError(error)
    settings = options.settings.split(",")
    results = [campaign(one, options.kills, options.folder, options.seed) for one in settings]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
