"""Pictures of a run for a person who was not there: curves, confusion, mistakes, calibration.

Figures are drawn off-screen on `Figure` objects, so nothing here touches a notebook's or a
program's own matplotlib state.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from matplotlib.figure import Figure

from vit_jax.analysis.calibration import draw_reliability, reliability
from vit_jax.analysis.panels import MOST_NAMED_CLASSES, short_name
from vit_jax.analysis.watching_plots import inside_figures
from vit_jax.data import Source
from vit_jax.runs import EVALUATE, RESULT, TRAIN, RunFolder
from vit_jax.training.metrics import (
    MultiLabelPredictions,
    Predictions,
    write_per_class,
    write_predictions,
)

_MOST_MISTAKES = 24


def draw_figures(
    run: RunFolder,
    lines: Sequence[dict[str, Any]],
    source: Source,
    predictions: Predictions | MultiLabelPredictions,
) -> None:
    """Writes the figures of a run, and the tables behind them, to its `figures/`.

    These are `curves.png` and `per_class.csv`, and where pictures have one label `confusion.png`,
    `mistakes.png`, `calibration.png` and `predictions.csv`; `inside.png` of a run that was watched.

    Args:
        lines: of the run's log, the result included.
        source: the test data.
        predictions: what the trained model says of them.
    """
    names = source.class_names
    figures = {"curves": curves(lines), **inside_figures(lines)}
    if isinstance(predictions, Predictions):
        figures["confusion"] = confusion(confusion_matrix(predictions, len(names)), names)
        figures["mistakes"] = mistakes(source, predictions)
        if np.isfinite(predictions.confidence).all():
            right = predictions.labels == predictions.predicted
            figures["calibration"] = draw_reliability(reliability(right, predictions.confidence))
    run.figures.mkdir(parents=True, exist_ok=True)
    if isinstance(predictions, Predictions):
        write_predictions(predictions, source, run.figures / "predictions.csv")
    write_per_class(predictions.per_class(names), run.figures / "per_class.csv")
    save_figures(run, figures)


def save_figures(run: RunFolder, figures: Mapping[str, Figure]) -> None:
    """Writes figures to `figures/` of a run, by their names."""
    run.figures.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        # A script that the font lacks shows as boxes; the names are whole in per_class.csv.
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        for name, figure in figures.items():
            figure.savefig(run.figures / f"{name}.png", dpi=120)


def curves(lines: Sequence[dict[str, Any]]) -> Figure:
    """Loss, accuracy and learning rate over the epochs, from the lines of `metrics.jsonl`."""
    training = [line for line in lines if line["kind"] == TRAIN]
    evaluations = [line for line in lines if line["kind"] in (EVALUATE, RESULT)]
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    panels = figure.subplots(1, 3)
    # What training and evaluation both measure: multi-label runs have no plain accuracy.
    accuracy = "accuracy" if any("accuracy" in line for line in lines) else "label_accuracy"
    panel_of = dict(zip(("loss", accuracy, "learning_rate"), panels, strict=True))
    for name, panel in panel_of.items():
        panel.set(xlabel="epoch", title=name.replace("_", " "))
        panel.grid(alpha=0.3)
        panel.plot(*_series(training, name), label="training", linewidth=1)
    for name in ("loss", accuracy):
        for split in sorted({line["split"] for line in evaluations}):
            lines_of_split = [line for line in evaluations if line["split"] == split]
            panel_of[name].plot(*_series(lines_of_split, name), label=split, marker=".")
        panel_of[name].legend()
    return figure


def confusion_matrix(predictions: Predictions, classes: int) -> Int[np.ndarray, "true predicted"]:
    """How many examples of each true class (rows) were taken for each class (columns)."""
    matrix = np.zeros((classes, classes), np.int64)
    np.add.at(matrix, (predictions.labels, predictions.predicted), 1)
    return matrix


def confusion(matrix: Int[np.ndarray, "true predicted"], names: Sequence[str]) -> Figure:
    """The confusion matrix as a picture; colours are shares of each true class."""
    classes = len(names)
    shares = matrix / np.maximum(1, matrix.sum(axis=1, keepdims=True))
    side = min(12, 3 + 0.4 * classes)
    figure = Figure(figsize=(side, side), layout="constrained")
    panel = figure.subplots()
    panel.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    accuracy = np.trace(matrix) / max(1, matrix.sum())
    panel.set(xlabel="predicted", ylabel="true", title=f"accuracy {100 * accuracy:.2f} %")
    if classes <= MOST_NAMED_CLASSES:
        labels = [short_name(name) for name in names]
        upright = 90 if max(map(len, labels)) > 2 else 0
        panel.set_xticks(range(classes), labels, rotation=upright, parse_math=False)
        panel.set_yticks(range(classes), labels, parse_math=False)
        for row, column in zip(*np.nonzero(matrix), strict=True):
            color = "white" if shares[row, column] > 0.5 else "black"
            panel.text(column, row, matrix[row, column], ha="center", va="center", color=color)
    return figure


def surest_mistakes(predictions: Predictions) -> Int[np.ndarray, " mistakes"]:
    """The rows of the predictions that are wrong, the most confident first."""
    wrong = np.flatnonzero(predictions.labels != predictions.predicted)
    return wrong[np.argsort(-predictions.confidence[wrong], kind="stable")]


def mistakes(source: Source, predictions: Predictions) -> Figure:
    """The mistakes that the model was most sure of, with what they are and what it said."""
    wrong = surest_mistakes(predictions)
    shown = wrong[:_MOST_MISTAKES]
    columns = min(6, max(1, len(shown)))
    rows = max(1, -(-len(shown) // columns))
    figure = Figure(figsize=(2.1 * max(3, columns), 0.5 + 2.3 * rows), layout="constrained")
    figure.suptitle(f"{len(wrong)} mistakes in {len(predictions.labels)} pictures, surest first")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel in panels:
        panel.axis("off")
    for panel, row in zip(panels, shown, strict=False):
        image = source[int(predictions.index[row])]["image"]
        panel.imshow(image.squeeze(), cmap="gray" if image.shape[-1] == 1 else None)
        panel.set_title(
            f"{short_name(source.class_names[predictions.labels[row]])}, taken for\n"
            f"{short_name(source.class_names[predictions.predicted[row]])} "
            f"({100 * predictions.confidence[row]:.0f} % sure)",
            fontsize=9,
            parse_math=False,  # a class may well be called $5_$
        )
    return figure


def _series(
    lines: Sequence[dict[str, Any]], name: str
) -> tuple[Float[np.ndarray, " lines"], Float[np.ndarray, " lines"]]:
    """Epochs and values of one metric."""
    present = [line for line in lines if name in line]
    return (
        np.array([line["epoch"] for line in present]),
        np.array([line[name] for line in present]),
    )
