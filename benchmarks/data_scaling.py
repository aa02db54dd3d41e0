"""Data scaling: five families of equal cost on 100 to 60,000 images of Fashion-MNIST.

    python -m benchmarks.data_scaling                    all runs; about two hours of two cores
    python -m benchmarks.data_scaling --only vit resnet --sizes 100 600
    python -m benchmarks.data_scaling --scale 0.01 --seeds 0     to check that it works
    python -m benchmarks.data_scaling --table            of the finished runs, without training

1. Tuning, the same for each family: a sweep of five learning rates on 6,000 training images, with
   6,000 others to validate, seed 0. The best rate is used for all sizes.
2. Three seeds for each size. The seed determines initial parameters, the order of the images, and
   which images of the training set are there; a smaller set is a part of a larger one.

Arms are those of `configs/data_scaling.py`, and the ViT without and with more augmentation, at its
rate and on up to 6,000 images. The DeiT's teacher is the ResNet of the same size and seed. Test
images are looked at once, after the last step. Prints the table of docs/results/data_scaling.md and
draws its figure. Finished runs are reused.
"""

import argparse
import functools
import itertools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.families import ROOT, accuracy
from vit_jax.config import load_config
from vit_jax.runs import RunDir
from vit_jax.studies.statistics import spread
from vit_jax.training import fit

CONFIG = "configs/data_scaling.py"
STEPS = {100: 300, 600: 600, 6_000: 1_200, 60_000: 3_000}  # by number of training images
RATES = ("1e-3", "3e-3", "9e-3", "2.7e-2", "8.1e-2")
TUNED_ON = 6_000
REACHED = 85.0  # percent: the table has the number of images that each arm needs for it


@dataclass(frozen=True)
class Arm:
    """Row of the table.

    preset: of the config. options: further ones. sizes: numbers of training images.
    """

    title: str
    preset: str
    options: tuple[tuple[str, float], ...] = ()
    sizes: tuple[int, ...] = tuple(STEPS)


_NONE = (("augment.flip", 0.0), ("augment.pad_crop", 0))
_MORE = (("augment.mixup", 0.2), ("augment.erase", 0.25))
_SMALL = (100, 600, 6_000)
ARMS = {
    "vit": Arm("ViT", "vit"),
    "deit": Arm("DeiT, taught by the ResNet", "deit"),
    "resnet": Arm("ResNet", "resnet"),
    "convnext": Arm("ConvNeXt", "convnext"),
    "hybrid": Arm("hybrid of ResNet and ViT", "hybrid"),
    "vit_plain": Arm("ViT without augmentation", "vit", _NONE, _SMALL),
    "vit_more": Arm("ViT with MixUp and erasing too", "vit", _MORE, _SMALL),
}
_TAUGHT, _TEACHER = "deit", "resnet"
Accuracies = Mapping[tuple[str, int], Sequence[float]]  # by arm and images: percent, by seed


@dataclass(frozen=True)
class Study:
    """Runs in a folder; `scale` shortens all of them, to check that they work."""

    folder: Path
    scale: float = 1.0

    def run(self, name: str, images: int, seed: int) -> RunDir:
        """Return a finished run; it is trained if it is not there yet."""
        run, arm = self._at(name, images, seed), ARMS[name]
        if run.is_run() and run.result():
            return run
        changes = self.changes(images, seed) | dict(arm.options)
        changes["optimizer.learning_rate"] = tuned(self, arm.preset)[0]
        if arm.preset == _TAUGHT:
            changes["distillation.teacher"] = str(self.run(_TEACHER, images, seed).path)
        return fit(load_config(ROOT / f"{CONFIG}:{arm.preset}", changes), run.path).run

    def finished(self, name: str, images: int, seed: int) -> float | None:
        """Return the test accuracy of a run in percent; None if it has not ended."""
        run = self._at(name, images, seed)
        return 100 * accuracy(run.path) if run.is_run() and run.result() else None

    def _at(self, name: str, images: int, seed: int) -> RunDir:
        return RunDir((self.folder / f"{name}_{images}_{seed}").resolve())

    def changes(self, images: int, seed: int) -> dict[str, object]:
        """Return the keys that the number of images and the seed determine."""
        steps = max(2, round(self.scale * STEPS[images]))
        limit = images if images < max(STEPS) else 0
        changes = {"seed": seed, "data.split_seed": seed, "data.limit": limit}
        return changes | {"duration": f"{steps} steps"}


@functools.cache  # each call of the command takes seconds, though it has nothing left to train
def tuned(study: Study, family: str) -> tuple[str, Path]:
    """Return the best learning rate of a family, and the run of its sweep that has it."""
    changes = study.changes(TUNED_ON, 0)
    if family == _TAUGHT:  # by a run that has not seen the validation images either
        changes["distillation.teacher"] = str(tuned(study, _TEACHER)[1])
    command = [sys.executable, "-m", "vit_jax", "sweep", f"--config={CONFIG}:{family}"]
    command += [f"--workdir={study.folder.resolve() / 'tuning' / family}", "--json"]
    command += [f"--over=optimizer.learning_rate={','.join(RATES)}"]
    command += [f"--config.{key}={value}" for key, value in changes.items()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout)
    [best] = [one for one in found["trials"] if one["settings"] == found["winner"]]
    return best["settings"]["optimizer.learning_rate"], Path(best["folder"])


def table(accuracies: Accuracies, names: Sequence[str]) -> str:
    """Return the accuracies in Markdown: a row for each arm, with the interval of the mean."""
    sizes = " | ".join(f"{images:,}" for images in STEPS)
    lines = [f"| | {sizes} | images for {REACHED:g} % |", "|---|" + "---:|" * (len(STEPS) + 1)]
    for name in names:
        by_size = {images: accuracies.get((name, images), ()) for images in STEPS}
        means = {images: float(np.mean(values)) for images, values in by_size.items() if values}
        cells = [_cell(values) for values in by_size.values()]
        lines.append(f"| {ARMS[name].title} | {' | '.join(cells)} | {_needed(means)} |")
    return "\n".join(lines)


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "not run"
    found = spread(values)
    half = "" if found.high is None else f" ± {found.high - found.mean:.2f}"
    return f"{found.mean:.2f}{half}"


def _needed(means: Mapping[int, float]) -> str:
    """Return the number of images at which a curve of means is at `REACHED`, in two digits.

    Between two sizes the accuracy is taken to grow evenly with the logarithm of the images.
    """
    for (few, low), (many, high) in itertools.pairwise(means.items()):
        if low < REACHED <= high:
            images = few * (many / few) ** ((REACHED - low) / (high - low))
            return f"{float(f'{images:.2g}'):,.0f}"
    return ""


def draw(accuracies: Accuracies, names: Sequence[str]) -> Figure:
    """Draw the error over the number of images, both logarithmic, with a dot for each seed."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for color, name in enumerate(names):
        sizes = [images for images in STEPS if accuracies.get((name, images))]
        errors = [100 - np.array(accuracies[name, images]) for images in sizes]
        axes.plot(sizes, [e.mean() for e in errors], f"C{color}", label=ARMS[name].title)
        for images, values in zip(sizes, errors, strict=True):
            axes.plot([images] * len(values), values, f"C{color}.")
    axes.set(xscale="log", yscale="log", xlabel="training images", ylabel="test error, %")
    axes.set_xticks(list(STEPS), [f"{images:,}" for images in STEPS])
    axes.set_yticks([10, 20, 30, 40], ["10", "20", "30", "40"])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--sizes", nargs="+", type=int, choices=STEPS, default=list(STEPS))
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "data_scaling")
    parser.add_argument("--table", action="store_true", help="train nothing")
    options = parser.parse_args()

    study = Study(options.runs, options.scale)
    for images in () if options.table else options.sizes:
        for name in (name for name in options.only if images in ARMS[name].sizes):
            for seed in options.seeds:
                study.run(name, images, seed)
                reached = study.finished(name, images, seed)
                print(f"{name}, {images:,} images, seed {seed}: {reached:.2f} %", flush=True)
    found = {
        (name, images): [
            reached
            for seed in options.seeds
            if (reached := study.finished(name, images, seed)) is not None
        ]
        for name in options.only
        for images in ARMS[name].sizes
    }
    print("\n" + table(found, options.only))
    draw(found, options.only).savefig(options.runs / "data_scaling.png", dpi=150)


if __name__ == "__main__":
    main()
