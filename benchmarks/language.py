"""Captions instead of labels: what a model of images and texts has learned, with controls.

    python -m benchmarks.language                    all runs; about an hour on two cores
    python -m benchmarks.language --only digits_labels digits_captions --seeds 0
    python -m benchmarks.language --scale 0.01 --seeds 0     to check that it works
    python -m benchmarks.language --memory           memory of the losses, by compilation alone

digits_labels      the digits with their labels, `configs/digits.py`
digits_captions    the same image tower with captions, classified by sentences with new templates
digits_shuffled    the same with the captions of other images
digits_lit         a new text tower for the frozen image tower of digits_labels
fashion_labels, fashion_captions    the same pair for Fashion-MNIST
compositions       images of two digits, from the image tower of digits_captions; the right
                   caption is to be told from wrong ones, for combinations of the training and
                   for others
compositions_plain    the same without wrong texts

The seed determines initial parameters and the order of the images. The last step counts, whatever
it is. Prints the tables of docs/results/language.md. Finished runs are reused.
"""

import argparse
import dataclasses
import functools
import json
import resource
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from benchmarks.families import ROOT, train_config
from vit_jax.data import open_source
from vit_jax.data.sources.composed.compositions import COMPOSITIONS, COUNTS, open_compositions
from vit_jax.inference import load
from vit_jax.runs import RunDir
from vit_jax.tasks.contrastive.losses import ROWS, sigmoid_losses, softmax_losses

Results = Mapping[str, Sequence[float]]
"""By arm: percent, by seed."""


@dataclasses.dataclass(frozen=True)
class Arm:
    """Training that is repeated with several seeds.

    title: in the table. config: file, and preset. epochs: its length. metric: of its result; ""
    if it is judged by compositions instead. options: of the command; `{seed}` is that of the run.
    starts_from: the arm whose run with the same seed it begins with.
    """

    title: str
    config: str
    epochs: float
    metric: str = "zero_shot_accuracy"
    options: tuple[str, ...] = ()
    starts_from: str = ""


_DIGITS, _FASHION = "configs/language/digits.py", "configs/language/fashion_mnist.py"
ARMS = {
    "digits_labels": Arm("digits, labels", "configs/digits.py", 45, "accuracy"),
    "digits_captions": Arm("digits, captions", _DIGITS, 45),
    "digits_shuffled": Arm(
        "digits, captions of other images",
        _DIGITS,
        20,
        options=(
            "--config.plugins=benchmarks.shuffled",
            "--config.dataset=captions:shuffled:{seed}:digits",
        ),
    ),
    "digits_lit": Arm(
        "digits, captions for the frozen tower of the labels",
        _DIGITS,
        20,
        options=("--config.objective.freeze_image=True",),
        starts_from="digits_labels",
    ),
    "fashion_labels": Arm("Fashion-MNIST, labels", f"{_FASHION}:labels", 5, "accuracy"),
    "fashion_captions": Arm("Fashion-MNIST, captions", f"{_FASHION}:captions", 5),
    "compositions": Arm(
        "compositions",
        "configs/language/compositions.py",
        3.2,
        metric="",
        options=("--config.objective.start_text=False",),
        starts_from="digits_captions",
    ),
    "compositions_plain": Arm(
        "compositions, without wrong texts",
        "configs/language/compositions.py",
        3.2,
        metric="",
        options=("--config.objective.start_text=False", "--config.objective.wrong_texts=0"),
        starts_from="digits_captions",
    ),
}
_SHOWN = {
    "test": "combinations of the training",
    "new_pairs": "new pairs of digits",
    "new_looks": "new looks of a digit",
}
WRONG = ("places", "sizes", "lights", "digit")
CHANCES = {  # in percent
    "right of 5": 100 / (1 + len(WRONG)),
    **dict.fromkeys(WRONG, 50.0),
    "first of 1,440": 100 / len(COMPOSITIONS),
    "among 5 of 1,440": 500 / len(COMPOSITIONS),
}
BATCHES, WIDTH = (512, 2_048, 8_192, 32_768), 512  # of the table of memory


@dataclasses.dataclass(frozen=True)
class Study:
    """Runs in a folder; `scale` shortens all of them, to check that they work."""

    folder: Path
    scale: float = 1.0

    def run(self, name: str, seed: int) -> RunDir:
        """Return a finished run; it is trained if it is not there yet."""
        workdir = (self.folder / f"{name}_{seed}").resolve()
        run, arm = RunDir(workdir), ARMS[name]
        if run.is_run() and run.result():
            return run
        options = [option.format(seed=seed) for option in arm.options]
        if arm.starts_from:
            options.append(f"--config.init_from={self.run(arm.starts_from, seed).path}")
        duration = f"{arm.epochs} epochs"
        if self.scale < 1:
            duration = f"{max(1, round(100 * self.scale * arm.epochs))} steps"
        start = time.perf_counter(), _cpu_seconds()
        train_config(
            arm.config,
            workdir,
            f"--config.seed={seed}",
            f"--config.duration={duration}",
            *(f"--config.{key}.every={duration}" for key in ("evaluate", "checkpoint")),
            *options,
        )
        taken = {"wall": time.perf_counter() - start[0], "cpu": _cpu_seconds() - start[1]}
        (workdir / "seconds.json").write_text(json.dumps(taken))
        return run

    def accuracy(self, name: str, seed: int) -> float:
        """Return the accuracy in percent at the last step of a run."""
        return 100 * self.run(name, seed).result()[ARMS[name].metric]

    def minutes(self, name: str, seed: int) -> float:
        """Return the time of the processors that a run took."""
        return json.loads((self.run(name, seed).path / "seconds.json").read_text())["cpu"] / 60

    def judge(self, name: str, seed: int) -> dict[str, dict[str, float]]:
        """Return by split, in percent, how often a run finds the right captions of its images."""
        towers = load(self.run(name, seed).path)
        splits = open_compositions("digits", open_source).splits
        texts = towers.encode_text([what.caption() for what in COMPOSITIONS])
        places = {what: place for place, what in enumerate(COMPOSITIONS)}
        found = {}
        for split in _SHOWN:
            source = splits[split]
            count = max(2, round(min(self.scale, 1) * COUNTS[split]))
            images = towers.encode_image([source[i]["image"] for i in range(count)], 250)
            shown = [source.composition(index) for index in range(count)]
            own = np.array([places[what] for what in shown])
            wrong = np.array([[places[what.wrong()[kind]] for kind in WRONG] for what in shown])
            found[split] = found_among(images @ texts.T, own, wrong)
        return found

    def is_frozen(self, name: str, seed: int) -> bool:
        """Return whether the image tower of a run has the bits of that which it began with."""
        after = self.run(name, seed).read_variables()[0]["frozen"]["image"]
        before = self.run(ARMS[name].starts_from, seed).read_variables()[0]["params"]
        before = {part: before[part] for part in after}
        return jax.tree.all(jax.tree.map(np.array_equal, before, after))


def found_among(
    cosines: Float[np.ndarray, "images texts"],
    own: Int[np.ndarray, " images"],
    wrong: Int[np.ndarray, "images kinds"],
) -> dict[str, float]:
    """Return how often the text of an image is nearer than others, in percent.

    Args:
        cosines: of all images and texts.
        own: the right text of each image. wrong: its four wrong ones, in the order of `WRONG`.
    """
    rows = np.arange(len(own))[:, None]
    right = cosines[rows, own[:, None]]
    better = right > cosines[rows, wrong]
    before = (cosines >= right).sum(axis=1) - 1
    found = [better.all(axis=1), *better.T, before < 1, before < 5]
    return {name: 100 * float(np.mean(hits)) for name, hits in zip(CHANCES, found, strict=True)}


def _cpu_seconds() -> float:
    """Return what all processes that this one has waited for have taken of the processors."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return the mean of seeds with their standard deviation."""
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {np.std(values, ddof=1):.{digits}f}"


def table(results: Results, minutes: Mapping[str, Sequence[float]]) -> str:
    """Return the accuracies in Markdown: a row for each arm."""
    seeds = max(map(len, results.values()))
    head = ["", "mean, %", *(f"seed {number}" for number in range(seeds)), "minutes of a core"]
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (seeds + 2)]
    for name, values in results.items():
        each = [f"{value:.2f}" for value in values]
        cells = [ARMS[name].title, spread(values), *each, f"{np.mean(minutes[name]):.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def judged_table(judged: Mapping[tuple[str, str], Sequence[Mapping[str, float]]]) -> str:
    """Return in Markdown what the compositions' runs find: a row for each arm and split."""
    lines = [f"| | {' | '.join(CHANCES)} |", "|---|" + "---:|" * len(CHANCES)]
    for (arm, split), seeds in judged.items():
        cells = [spread([found[name] for found in seeds], 1) for name in CHANCES]
        lines.append(f"| {ARMS[arm].title}: {_SHOWN[split]} | {' | '.join(cells)} |")
    chances = [f"{chance:.2g}" for chance in CHANCES.values()]
    return "\n".join([*lines, f"| by chance | {' | '.join(chances)} |"])


# ----------------------------------------------------------------------------------------- memory


def _textbook(images, texts, scale, bias):
    """Return the softmax's losses by a single matrix of all pairs, without padding and groups."""
    del bias
    logits = scale * images @ texts.T
    sums = jax.nn.logsumexp(logits, axis=1) + jax.nn.logsumexp(logits, axis=0)
    return sums / 2 - jnp.diag(logits)


def _softmax(images, texts, scale, bias, rows=ROWS):
    del bias
    return softmax_losses(images, texts, scale, rows=rows)


LOSSES = {
    "softmax, in pieces": _softmax,
    "softmax, all rows at once": functools.partial(_softmax, rows=0),
    "softmax, one matrix and no more": _textbook,
    "sigmoid, in pieces": sigmoid_losses,
    "sigmoid, all rows at once": functools.partial(sigmoid_losses, rows=0),
}


def memory(losses, batch: int, *, gradient: bool) -> float:
    """Return the MiB that a compiled loss takes besides its inputs and outputs."""
    vectors = jax.ShapeDtypeStruct((batch, WIDTH), jnp.float32)
    number = jax.ShapeDtypeStruct((), jnp.float32)

    def loss(*arguments):
        return losses(*arguments).mean()

    function = jax.grad(loss, argnums=(0, 1, 2, 3)) if gradient else loss
    compiled = jax.jit(function).lower(vectors, vectors, number, number).compile()
    return compiled.memory_analysis().temp_size_in_bytes / 2**20


def memory_table() -> str:
    """Return the memory of all losses in Markdown: a row for each, MiB with the gradient."""
    lines = [f"| batch | {' | '.join(f'{batch:,}' for batch in BATCHES)} |"]
    lines.append("|---|" + "---:|" * len(BATCHES))
    for name, losses in LOSSES.items():
        for gradient in (False, True):
            cells = [f"{memory(losses, batch, gradient=gradient):,.0f}" for batch in BATCHES]
            title = f"{name}, with gradient" if gradient else name
            lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "language")
    parser.add_argument("--memory", action="store_true", help="train nothing")
    options = parser.parse_args()
    if options.memory:
        print(memory_table())
        return

    study = Study(options.runs, options.scale)
    results: dict[str, list[float]] = {}
    minutes: dict[str, list[float]] = {}
    judged: dict[tuple[str, str], list[dict[str, float]]] = {}
    for seed in options.seeds:
        for name in options.only:
            minutes.setdefault(name, []).append(study.minutes(name, seed))
            if not ARMS[name].metric:
                for split, found in study.judge(name, seed).items():
                    judged.setdefault((name, split), []).append(found)
                    print(f"{name}, seed {seed}, {split}: {found}", flush=True)
                continue
            results.setdefault(name, []).append(study.accuracy(name, seed))
            print(f"{name}, seed {seed}: {results[name][-1]:.2f} %", flush=True)
            if name == "digits_lit":
                print(f"  its image tower is unchanged: {study.is_frozen(name, seed)}", flush=True)
    if results:
        print("\n" + table(results, minutes))
    if judged:
        print(f"\n{judged_table(judged)}\n")
        for name in (name for name in minutes if not ARMS[name].metric):
            print(f"{name}, minutes of a core: {spread(minutes[name], 1)}")


if __name__ == "__main__":
    main()
