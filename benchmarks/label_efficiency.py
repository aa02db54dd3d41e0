"""Label efficiency: fine-tuning of a masked autoencoder against training from scratch.

    python -m benchmarks.label_efficiency            27 runs; about an hour and a half on one core
    python -m benchmarks.label_efficiency --scale 0.01 --seeds 0     to check that it works

`configs/mae/fashion_mnist.py` learns from 60,000 images without labels. The encoder is fine-tuned
with 100, 600, 6,000 and 60,000 labels; the same model is trained from scratch with as many, and
for so much longer that both have cost the same, pre-training included. The seed determines initial
parameters, the order of the images, and which images have labels. The test images are looked at
once, after the last step of each run. Prints the tables of docs/results/label_efficiency.md.
Finished runs are reused.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.families import ROOT, accuracy, train_config
from vit_jax.evaluation.few_shot import t_half_width
from vit_jax.runs import RunDir

CONFIG = "configs/mae/fashion_mnist.py"
IMAGES = 60_000
# Images seen, as multiples of the 60,000: in pre-training, and in fine-tuning by number of labels.
PRETRAIN = 8.0
FINETUNE = {100: 0.25, 600: 0.5, 6_000: 1.5, 60_000: 3.0}
COST = 0.72  # of an image in pre-training, by that of one in supervised training (time of a step)
BATCH = 128

Accuracies = Mapping[tuple[str, int], Sequence[float]]  # by preset and labels: percent, by seed


@dataclass(frozen=True)
class Runs:
    """Runs of a seed in a folder; `scale` shortens all of them, to check that they work."""

    folder: Path
    seed: int
    scale: float

    def pretrain(self) -> Path:
        """Return the folder of the pre-training run, judged by k-NN too."""
        return self._train("pretrain", IMAGES, PRETRAIN, "--config.evaluators=knn")

    def finetune(self, labels: int) -> float:
        """Return the test accuracy in percent of the fine-tuned encoder."""
        start = f"--config.init_from={self.pretrain()}"
        return 100 * accuracy(self._train("finetune", labels, FINETUNE[labels], start))

    def scratch(self, labels: int) -> float:
        """Return the test accuracy in percent of training from scratch at the same cost."""
        seen = FINETUNE[labels] + COST * PRETRAIN
        return 100 * accuracy(self._train("scratch", labels, seen))

    def _train(self, preset: str, labels: int, seen: float, *options: str) -> Path:
        """Return the folder of a run that has seen so many times 60,000 images."""
        workdir = (self.folder / f"{preset}_{labels}_{self.seed}").resolve()
        if (run := RunDir(workdir)).is_run() and run.result():
            return workdir
        steps = max(2, round(self.scale * seen * IMAGES / BATCH))
        train_config(
            f"{CONFIG}:{preset}",
            workdir,
            f"--config.seed={self.seed}",
            f"--config.data.train={labelled(labels, self.seed)}",
            f"--config.duration={steps} steps",
            f"--config.batch_size={BATCH}",
            *(f"--config.{key}.every={steps} steps" for key in ("evaluate", "checkpoint")),
            *options,
        )
        return workdir


def labelled(labels: int, seed: int) -> str:
    """Return the images that have labels, as a slice: another part for each seed."""
    start = seed * labels if labels < IMAGES else 0
    return f"train[{start}:{start + labels}]"


def interval(values: Sequence[float]) -> str:
    """Return the mean of seeds with the half width of its 95 % interval (Student's t)."""
    mean = f"{np.mean(values):.2f}"
    return mean if len(values) < 2 else f"{mean} ± {t_half_width(np.array(values)):.2f}"


def table(accuracies: Accuracies) -> str:
    """Return the results in Markdown: a row for each number of labels."""
    lines = ["| labels | from scratch | pre-trained | difference |", "|---:|---:|---:|---:|"]
    for labels in FINETUNE:
        ours, theirs = accuracies["finetune", labels], accuracies["scratch", labels]
        gains = [a - b for a, b in zip(ours, theirs, strict=True)]
        lines.append(f"| {labels:,} | {interval(theirs)} | {interval(ours)} | {interval(gains)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, nargs="+", choices=range(5), default=(0, 1, 2))
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "label_efficiency")
    options = parser.parse_args()

    accuracies: dict[tuple[str, int], list[float]] = {}
    for seed in options.seeds:
        runs = Runs(options.runs, seed, options.scale)
        for labels in reversed(FINETUNE):
            for preset, train in (("finetune", runs.finetune), ("scratch", runs.scratch)):
                reached = train(labels)
                accuracies.setdefault((preset, labels), []).append(reached)
                print(f"{preset}, {labels:,} labels, seed {seed}: {reached:.2f} %", flush=True)
        knn = RunDir(runs.pretrain()).result()
        print(f"seed {seed}: {knn}", flush=True)
    print("\n" + table(accuracies))


if __name__ == "__main__":
    main()
