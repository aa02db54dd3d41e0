"""Probes of every layer of a run, for `python -m vit_jax probe`, and their files.

report = probe_run("runs/vit", other="runs/resnet")
report.figure().savefig("probe.png")
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from rich.table import Table

from vit_jax.analysis.representations.early_exit import EarlyExits, early_exits
from vit_jax.analysis.representations.features import POOLS, Layers, extract_layers, sample
from vit_jax.analysis.representations.probe import SHOTS, LayerProbe, probe_layers
from vit_jax.analysis.representations.probe_plots import draw_probes
from vit_jax.analysis.representations.similarity import LEAST_IMAGES, cka_matrix
from vit_jax.csv_files import write_csv
from vit_jax.data import Source, open_source
from vit_jax.errors import UserError, nearest
from vit_jax.evaluation.probe import check_labels
from vit_jax.inference import Classifier, load_model
from vit_jax.progress import Show
from vit_jax.training.open_run import open_run


@dataclass(frozen=True)
class ProbedRun:
    """Probes of one run.

    name: its path. step: of its checkpoint. probes: of every layer, the first one first.
    """

    name: str
    step: int | None
    probes: tuple[LayerProbe, ...]


@dataclass(frozen=True)
class ProbeReport:
    """Probes and similarity of the layers of one run, or of two.

    Attributes:
        runs: the run, and the other one if there is one.
        similarity: centred kernel alignment of the run's layers (rows) with the other's, or with
            its own.
        images: numbers of training and of test images.
        pool: pooling of the tokens.
    """

    runs: tuple[ProbedRun, ...]
    similarity: Float[np.ndarray, "layers other_layers"]
    images: tuple[int, int]
    pool: str

    def figure(self) -> Figure:
        """Draw accuracy by layer, and the map of layer similarity."""
        sides = [(run.name, [probe.layer for probe in run.probes]) for run in self.runs]
        probes = {run.name: run.probes for run in self.runs}
        return draw_probes(probes, self.similarity, sides[0], sides[-1])

    def table(self, run: ProbedRun) -> Table:
        """Create a table with a row for each layer, in percent with 95 % intervals."""
        table = Table("layer", title=run.name if len(self.runs) > 1 else None)
        shots = sorted({few.shots for probe in run.probes for few in probe.few_shot})
        headings = [f"{count} shot{'s' * (count > 1)}" for count in shots]
        for heading in ("width", "linear", "neighbours", *headings):
            table.add_column(heading, justify="right")
        for probe in run.probes:
            few = {one.shots: one for one in probe.few_shot}
            measured = (probe.linear, probe.knn, *(few[count] for count in shots))
            cells = (
                f"{100 * one.accuracy:.1f} ({100 * one.low:.1f}-{100 * one.high:.1f})"
                for one in measured
            )
            table.add_row(probe.layer, f"{probe.width:,}", *cells)
        return table

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each run, layer and probe; accuracies are fractions."""
        return [
            {
                "run": run.name,
                "layer": probe.layer,
                "width": probe.width,
                "probe": name,
                "accuracy": one.accuracy,
                "low": one.low,
                "high": one.high,
            }
            for run in self.runs
            for probe in run.probes
            for name, one in (
                ("linear", probe.linear),
                ("neighbours", probe.knn),
                *((f"{few.shots} shot", few) for few in probe.few_shot),
            )
        ]

    def write_csv(self, path: str | os.PathLike) -> None:
        """Write `rows` to a file."""
        rows = self.rows()
        write_csv(path, list(rows[0]), (row.values() for row in rows))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values; NaN becomes None."""
        similarity = [
            [float(value) if np.isfinite(value) else None for value in row]
            for row in self.similarity
        ]
        train, test = self.images
        return {
            "runs": [
                {
                    "run": run.name,
                    "step": run.step,
                    "layers": [probe.layer for probe in run.probes],
                }
                for run in self.runs
            ],
            "train_images": train,
            "test_images": test,
            "pool": self.pool,
            "probes": self.rows(),
            "cka": similarity,
        }


def probe_run(
    run: str,
    *,
    other: str = "",
    dataset: str = "",
    split: str = "test",
    train_split: str = "train",
    pool: str = "own",
    images: int = 2000,
    neighbours: int = 10,
    checkpoint: int | str = "last",
    raw: bool = False,
    progress: Show = lambda what, done, total: None,
) -> ProbeReport:
    """Probe every layer of a run, and compare its layers with each other or another run's.

    Args:
        run: a run folder.
        other: another run folder; its model sees the same images with its own preprocessing.
        dataset: data in place of the run's own, with any classes.
        split, train_split: test and training data of the probes.
        pool: of `extract_layers`.
        images: maximum number per split, always the same random ones; 0: all.
        neighbours: k of the k-NN probe.
        checkpoint, raw: of the run, and of the other one if it has them.
        progress: called with progress messages.

    Raises:
        UserError: unknown run, data or split, splits that share images, or too few images.
    """
    if pool not in POOLS:
        raise UserError(
            f"pool {pool!r} is invalid{nearest(pool, POOLS)}; use one of {', '.join(POOLS)}"
        )
    train, test = _sources(run, dataset, train_split, split)
    train, test = sample(train, images), sample(test, images)
    if len(test) < LEAST_IMAGES:
        raise UserError(f"{split} has {len(test)} images; probes need at least 4 for testing")
    if not train.multi_label:  # errors are reported before the work
        check_labels(train.labels, neighbours)
    classifiers = {path: load_model(path, checkpoint, raw=raw) for path in (run, other) if path}
    probed, of_test = [], []
    for path in (run, *([other] if other else [])):
        classifier = classifiers[path]
        here, there = _extract(classifier, (train, test), pool, path, progress)
        probes = probe_layers(
            here,
            there,
            shots=SHOTS,
            neighbours=neighbours,
            progress=lambda done, total, path=path: progress(f"probes of {path}", done, total),
        )
        probed.append(ProbedRun(path, classifier.step, tuple(probes)))
        of_test.append(there.features.values())
    similarity = cka_matrix(of_test[0], of_test[1] if other else None)
    return ProbeReport(tuple(probed), similarity, (len(here.labels), len(there.labels)), pool)


def exits_of_run(
    run: str,
    *,
    dataset: str = "",
    split: str = "test",
    train_split: str = "train",
    pool: str = "own",
    images: int = 2000,
    checkpoint: int | str = "last",
    raw: bool = False,
    progress: Show = lambda what, done, total: None,
) -> EarlyExits:
    """Return the early exits of a run, whose linear probes learn on its training data.

    Arguments and errors are those of `probe_run`.
    """
    train, test = _sources(run, dataset, train_split, split)
    train, test = sample(train, images), sample(test, images)
    classifier = load_model(run, checkpoint, raw=raw)
    return early_exits(*_extract(classifier, (train, test), pool, run, progress))


def _sources(run: str, dataset: str, train_split: str, split: str) -> tuple[Source, Source]:
    """Open the training and test data."""
    if dataset:  # a probe learns its own classes, which need not be the model's
        train, test = (open_source(dataset, name) for name in (train_split, split))
    else:
        reopened = open_run(run)
        train, test = reopened.source(train_split), reopened.source(split)
    if train is test or train.overlaps(test):
        raise UserError(
            f"{train_split} and {split} share images, so the probe would be tested on its own "
            "training data; use disjoint splits (train_split, split; --train-split, --split)"
        )
    return train, test


def _extract(
    classifier: Classifier,
    sources: tuple[Source, Source],
    pool: str,
    path: str,
    progress: Show,
) -> list[Layers]:
    return [
        extract_layers(
            classifier,
            source,
            pool=pool,
            progress=lambda done, total, name=source.split: progress(
                f"features of {Path(path).name}, {name}", done, total
            ),
        )
        for source in sources
    ]
