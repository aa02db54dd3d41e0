"""Accuracy, multiply-adds and speed of trained ViTs with fewer tokens, fewer heads, or early exits.

    python -m benchmarks.tokens runs/digits --finetune="10 epochs" --output=docs/results/tokens

- Trained models are used as they are, then fine-tuned where `--finetune` says how long; what is
  tuned is written to a folder that is removed afterwards.
- Speed is that of one core: images by CPU second of the process, so that other work on the machine
  does not count, the best of several passes; all settings take turns.
"""

import argparse
import csv
import functools
import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.figure import Figure

import vit_jax
from vit_jax.analysis.latency.timing import time_in_turns
from vit_jax.compress.prune import CRITERIA, prune
from vit_jax.config import restore_config
from vit_jax.data import eval_batches
from vit_jax.models.summary.cost import cost
from vit_jax.runs import RunDir
from vit_jax.training import fit
from vit_jax.training.open_run import open_run

BATCH = 120  # images of one pass
PASSES = 15
MERGED = ({}, {"tome_r": 1}, {"tome_r": 2}, {"tome_r": 3})
KEPT = tuple({"keep_ratio": ratio} for ratio in (0.9, 0.8, 0.7, 0.6, 0.5))
ALONE = tuple({**fields, "keep_fused": False} for fields in KEPT[::2])
UNWEIGHTED = ({"tome_r": 3, "tome_proportional": False},)
SHARES = (0.125, 0.25, 0.5)  # of heads and hidden units


class Row(NamedTuple):
    """Setting of a trained model, and its results; `tuned` is the accuracy after fine-tuning."""

    run: str
    setting: str
    tokens: int
    parameters: int
    macs: int
    accuracy: float
    images_per_cpu_second: float
    relative_speed: float
    tuned: float | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", help="run folders of ViTs")
    parser.add_argument("--finetune", default="", help='length, such as "10 epochs"')
    parser.add_argument("--only", default="", help="settings with this in their names, and all")
    parser.add_argument("--output", default="", help="folder for tokens.csv and tokens.png")
    asked = parser.parse_args()
    rows = [row for run in asked.runs for row in measured(run, asked.finetune, asked.only)]
    if asked.output:
        folder = Path(asked.output)
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "tokens.csv", "w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([Row._fields, *rows])
        draw(rows).savefig(folder / "tokens.png", dpi=120)


def measured(run: str, finetune: str, only: str) -> Iterator[Row]:
    """Yield the rows of a run, and print them; the first one is the model as it is."""
    images, labels = test_images(run)
    with tempfile.TemporaryDirectory() as folder:
        opened = [
            (in_words(fields), run, fields)
            for fields in (*MERGED, *UNWEIGHTED, *KEPT, *ALONE)
            if not fields or only in in_words(fields)
        ]
        for share, by in itertools.product(SHARES, CRITERIA):
            setting = f"without {100 * share:g} % of heads and units ({by})"
            if only in setting:
                smaller = str(Path(folder) / f"{by}{share}")
                prune(run, smaller, heads=share, mlp=share, by=by)
                opened.append((setting, smaller, {}))
        models = [vit_jax.load(path, **fields) for _, path, fields in opened]
        seconds = cpu_seconds(models, images[:BATCH])
        for i, (setting, path, fields) in enumerate(opened):
            tuned = None
            if finetune and worth_tuning(setting, fields):
                tuned = tune(path, fields, finetune, Path(folder) / f"tuned{i}")
            costs = cost(models[i].model)
            row = Row(
                Path(run).name,
                setting,
                costs.tokens,
                costs.parameters,
                costs.macs,
                accuracy(models[i], images, labels),
                BATCH / seconds[i],
                seconds[0] / seconds[i],
                tuned,
            )
            after = "" if tuned is None else f", fine-tuned {100 * tuned:.2f} %"
            print(
                f"{row.run}: {setting}: {row.tokens} tokens, {row.parameters:,} parameters, "
                f"{row.macs:,} MACs, {100 * row.accuracy:.2f} %{after}, "
                f"{row.images_per_cpu_second:,.0f} images/s, {row.relative_speed:.2f} x",
                flush=True,
            )
            yield row


def in_words(fields: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in fields.items()) or "all"


def worth_tuning(setting: str, fields: dict[str, Any]) -> bool:
    """Return whether a setting loses enough to be fine-tuned; one of each kind is enough."""
    return fields in (MERGED[-1], KEPT[-1]) or setting.endswith("% of heads and units (taylor)")


def test_images(run: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the preprocessed test images of a run and their labels."""
    experiment = open_run(run).experiment
    batches = list(eval_batches(experiment.test_source, experiment.preprocessing, batch_size=1000))
    real = [batch["mask"].astype(bool) for batch in batches]
    images, labels = (
        np.concatenate([batch[name][mask] for batch, mask in zip(batches, real, strict=True)])
        for name in ("image", "label")
    )
    return images, labels


def accuracy(model: vit_jax.Classifier, images: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of images whose class is right; the last part is padded."""
    right = 0
    for start in range(0, len(images), BATCH):
        part, wanted = images[start : start + BATCH], labels[start : start + BATCH]
        padded = np.resize(part, (BATCH, *part.shape[1:]))
        right += int((np.asarray(model.logits(padded)).argmax(1)[: len(wanted)] == wanted).sum())
    return right / len(images)


def cpu_seconds(models: list[vit_jax.Classifier], images: np.ndarray) -> list[float]:
    """Return the CPU seconds of one pass of every model, the best of several."""

    def run(model: vit_jax.Classifier) -> None:
        jax.block_until_ready(model.logits(images))

    runs = [functools.partial(run, model) for model in models]
    times = time_in_turns(runs, 0, PASSES, time.process_time)  # one call in a round
    return [min(one.seconds) for one in times]


def tune(path: str, fields: dict[str, Any], length: str, folder: Path) -> float:
    """Return the test accuracy after some more training, with a tenth of the learning rate."""
    config = restore_config(RunDir(path).read_config())
    config.model.update(fields)
    config.init_from = path
    config.duration, config.schedule.warmup = length, "1 epochs, at most 20%"
    config.evaluate.every = config.checkpoint.every = config.log.every = length
    config.optimizer.learning_rate = config.optimizer.learning_rate / 10
    fit(config, folder)
    return RunDir(folder).result()["accuracy"]


def draw(rows: list[Row]) -> Any:
    """Draw accuracy against multiply-adds, one panel for each run."""
    runs = list(dict.fromkeys(row.run for row in rows))
    figure = Figure(figsize=(5.5 * len(runs), 4.5), layout="constrained")
    for number, run in enumerate(runs, start=1):
        panel = figure.add_subplot(1, len(runs), number)
        own = [row for row in rows if row.run == run]
        for name, marker, chosen in (
            ("ToMe", "o", lambda s: s == "all" or (s.startswith("tome") and "," not in s)),
            ("EViT", "s", lambda s: s == "all" or (s.startswith("keep") and "," not in s)),
            ("pruned (taylor)", "^", lambda s: s == "all" or "taylor" in s),
            ("pruned (magnitude)", "v", lambda s: s == "all" or "magnitude" in s),
        ):
            line = sorted((r for r in own if chosen(r.setting)), key=lambda row: row.macs)
            if len(line) < 2:
                continue
            panel.plot(
                [row.macs / 1e6 for row in line],
                [100 * row.accuracy for row in line],
                marker=marker,
                label=name,
            )
        tuned = [row for row in own if row.tuned is not None]
        panel.scatter(
            [row.macs / 1e6 for row in tuned],
            [100 * row.tuned for row in tuned],
            marker="*",
            s=80,
            color="black",
            zorder=3,
            label="fine-tuned",
        )
        panel.set(title=run, xlabel="million multiply-adds", ylabel="test accuracy in %")
        panel.legend()
    return figure


if __name__ == "__main__":
    main()
