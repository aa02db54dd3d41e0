"""What tiny training runs compute, to the last bit, to prove that a move or renaming changes none.

    python -m tests.goldens.runs write before.json
    python -m tests.goldens.runs write after.json        of the changed code, on the same machine
    python -m tests.goldens.runs compare before.json after.json --rename ema=ema_decay

Two processes of one machine agree in every bit, two kinds of CPU do not, so what is written is not
committed. A file holds the configuration, the record of the model, every number of the log and a
digest of every array of the train state, each under a path such as `vit/log/train 2/loss`. A key
that has a new name is renamed by `--rename`, any number of times, and then is no difference.

Each run is there twice: straight through, and stopped in the middle and resumed.
"""

import argparse
import hashlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before JAX starts: small programs, and sums in one order
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = (
        "--xla_backend_optimization_level=0 --xla_cpu_multi_thread_eigen=false"
    )

import numpy as np

from tests.folders import CONFIGS
from tests.support.comparing import metrics_but_timings, whole_state
from vit_jax.config import flatten, load_config
from vit_jax.data.sources import digits
from vit_jax.runs import RunDir
from vit_jax.training import fit
from vit_jax.training.callbacks import Observation

CONFIGS = CONFIGS
STOP_AT = 4  # after the next step: between two log lines, two evaluations and two checkpoints

# Enough steps for a warm-up, a stop in the middle and two evaluations on validation data.
EACH = {
    "batch_size": 16,
    "duration": "8 steps",
    "data.train": "train[:200]",
    "data.validation": "train[200:250]",
    "data.test": "test[:50]",
    "schedule.warmup": "2 steps",
    "log.every": "2 steps",
    "log.diagnostics": f"{STOP_AT} steps",
    "evaluate.every": "4 steps",
    "checkpoint.every": "4 steps",
}
MIXED = {"augment.mixup": 0.8, "augment.cutmix": 1.0, "objective.label_smoothing": 0.1}
AVERAGED = {"accumulate_steps": 2, "ema_decay": 0.9}
RUNS = {
    "vit": ("digits.py", {
        **EACH, **MIXED, **AVERAGED, "model.width": 8, "model.depth": 2, "model.heads": 2,
        "model.mlp_dropout": 0.1, "model.drop_path": 0.2, "optimizer.layer_decay": 0.8,
    }),
    "swin": ("family/swin.py", {
        **EACH, **MIXED, "model.width": 8, "model.drop_path": 0.2, "augment.repeats": 2,
        "optimizer.name": "muon", "objective.class_weights": "balanced",
    }),
    "resnet": ("family/resnet.py", {
        **EACH, **MIXED, **AVERAGED, "model.depths": (1, 1), "model.widths": (4, 8),
        "model.stem_width": 4, "optimizer.name": "sgd", "objective.loss": "sigmoid",
    }),
}  # fmt: skip


# ------------------------------------------------------------------------------------------ writing


def write(data: Path, names: Iterable[str] = RUNS) -> dict[str, str]:
    """Train runs of these names, and return what `digests` says of all of them.

    data: folder with the prepared digits.
    """
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            for label, stops in ((name, False), (f"{name}, resumed", True)):
                run = train(name, data, Path(folder, label), stops=stops)
                found |= {f"{label}/{path}": value for path, value in digests(run).items()}
    return found


def train(name: str, data: Path, workdir: Path, *, stops: bool) -> RunDir:
    """Train a run to its end; one that `stops` does so in the middle, and is then resumed."""
    file, changes = RUNS[name]
    config = load_config(CONFIGS / file, list({**changes, "data.dir": str(data)}.items()))
    if stops:
        assert fit(config, workdir, watch=_stop).result is None
    return fit(config, workdir, watch=_look).run


def _look(experiment: Any):
    return lambda step, state, batch: Observation({}, {})


def _stop(experiment: Any):
    """The same, but ask the process to stop, as a person does by Ctrl-C."""

    def watcher(step: int, state: Any, batch: Any) -> Observation:
        if step == STOP_AT:
            os.kill(os.getpid(), signal.SIGINT)
        return Observation({}, {})

    return watcher


def digests(run: RunDir) -> dict[str, str]:
    """Return everything that a finished run has come to, by path."""
    config = {path: value for path, value in flatten(run.read_config()) if path != "data.dir"}
    model = {key: value for key, value in run.read_model().to_json().items() if key != "versions"}
    log = {
        f"{line['kind']} {line['step']}/{key}": value
        for line in metrics_but_timings(run.path)
        for key, value in line.items()
        if key not in ("kind", "step")
    }
    state = {path: digest(array) for path, array in whole_state(run.path, run.steps()[-1]).items()}
    parts = {"config": config, "model": model, "log": log, "state": state}
    return {
        f"{part}/{path}": value if isinstance(value, str) else json.dumps(value)
        for part, values in parts.items()
        for path, value in values.items()
    }


def digest(array: np.ndarray) -> str:
    """Return type, shape and a fingerprint of the bits of an array."""
    bits = hashlib.sha256(array.tobytes()).hexdigest()[:16]
    return f"{array.dtype} {'x'.join(map(str, array.shape))} {bits}"


# ---------------------------------------------------------------------------------------- comparing


def differences(
    before: Mapping[str, str], after: Mapping[str, str], renamed: Mapping[str, str]
) -> list[str]:
    """Return a line for each path that is in one only, or has another value.

    Args:
        renamed: new names by old ones: of keys, such as `log.every`, or of parts of a path.
    """
    before = {_renamed(path, renamed): value for path, value in before.items()}
    return [
        f"{path}: {before.get(path, 'missing')} -> {after.get(path, 'missing')}"
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    ]


def _renamed(path: str, renamed: Mapping[str, str]) -> str:
    return "/".join(renamed.get(part, part) for part in path.split("/"))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 1 says that two files differ."""
    parser = argparse.ArgumentParser(prog="python -m tests.goldens.runs")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write").add_argument("file", type=Path)
    compare = commands.add_parser("compare")
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)
    compare.add_argument("--rename", metavar="OLD=NEW", action="append", default=[])
    chosen = parser.parse_args(arguments)
    if chosen.command == "write":
        with tempfile.TemporaryDirectory() as data:
            digits.prepare(data)
            chosen.file.write_text(json.dumps(write(Path(data)), indent=1) + "\n")
        return 0
    before, after = (json.loads(file.read_text()) for file in (chosen.before, chosen.after))
    found = differences(before, after, dict(pair.split("=") for pair in chosen.rename))
    print(*found, f"{len(after):,} compared, {len(found):,} differ", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
