"""Figures of a run: curves, confusion matrix, most confident errors, calibration.

Figures are drawn off-screen on `Figure` objects, so the matplotlib state of a notebook or program
is not affected.
"""

import functools
import io
import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vit_jax.analysis.errors.calibration import draw_reliability, judged, reliability
from vit_jax.analysis.figures import MOST_NAMED_CLASSES, short_name
from vit_jax.analysis.monitoring.plots import draw_diagnostics
from vit_jax.data import Source
from vit_jax.data.images.clips import still
from vit_jax.errors import UserError
from vit_jax.evaluation.dense.segmentation import PixelCounts
from vit_jax.evaluation.metrics import (
    SHARES,
    MultiLabelPredictions,
    Predictions,
    is_share,
    metric_names,
    write_per_class,
    write_predictions,
)
from vit_jax.runs import DIAGNOSTICS, EVALUATE, EVALUATOR, RESULT, TRAIN, RunDir
from vit_jax.text import counted

OF_TASK = "task_"  # prefix of the files of figures that a task draws itself
_MOST_MISTAKES = 24
_MOST_OF_A_PAIR = 3  # errors between the same two classes, so that no pair fills the figure
_MOST_DRAWN_CLASSES = 100  # a larger confusion matrix is illegible
_MOST_CONFUSED = 30


def draw_figures(
    run: RunDir,
    lines: Sequence[dict[str, Any]],
    source: Source,
    predictions: Predictions | MultiLabelPredictions | PixelCounts | None,
    others: Mapping[str, Callable[[], Figure]] | None = None,
) -> None:
    """Write the figures of a run and the tables behind them to its `figures/`.

    These are `curves.png`; for a classifier `per_class.csv`, for a segmentation
    `pixel_classes.csv`; for images with one label also
    `confusion.png`, `mistakes.png`, `calibration.png` and `predictions.csv`; and
    `diagnostics.png` if `log.diagnostics` was set.
    Each is drawn, written and released before the next.

    Args:
        lines: of the run's log, the result included.
        source: the test data.
        predictions: the table of the task's evaluator; None without one.
        others: further figures of the task, by name.

    Raises:
        UserError: some figures could not be drawn; the others were written.
    """
    run.figures.mkdir(parents=True, exist_ok=True)
    if isinstance(predictions, Predictions):
        write_predictions(predictions, source, run.figures / "predictions.csv")
    if predictions is not None:
        file = getattr(predictions, "file", "per_class.csv")
        write_per_class(predictions.per_class(source.class_names), run.figures / file)
    failed = []
    for name, draw in _figures(lines, source, predictions, others or {}):
        (run.figures / f"{name}.png").unlink(missing_ok=True)
        try:
            (run.figures / f"{name}.png").write_bytes(draw())
        except Exception as error:  # one failure must not prevent the others
            failed.append(f"{name}.png ({type(error).__name__}: {error})")
    if failed:
        raise UserError(f"{counted(len(failed), 'figure')} could not be drawn: {', '.join(failed)}")


def _figures(
    lines: Sequence[dict[str, Any]],
    source: Source,
    predictions: Predictions | MultiLabelPredictions | PixelCounts | None,
    others: Mapping[str, Callable[[], Figure]],
) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield file names, and functions that draw PNG files."""
    yield "curves", lambda: curves_png(lines)
    if any(line["kind"] == DIAGNOSTICS for line in lines):
        yield "diagnostics", lambda: to_png(draw_diagnostics(lines))
    if isinstance(predictions, Predictions):
        yield "confusion", lambda: to_png(confusion(predictions, source.class_names))
        yield "mistakes", lambda: to_png(mistakes(source, predictions))
        yield "calibration", lambda: to_png(draw_reliability(reliability(*judged(predictions))))
    for name, draw in others.items():
        yield f"{OF_TASK}{name}", lambda draw=draw: to_png(draw())


def save_figures(run: RunDir, figures: Mapping[str, Figure]) -> None:
    """Write figures to `figures/` of a run, by their names."""
    run.figures.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        (run.figures / f"{name}.png").write_bytes(to_png(figure))


def to_png(figure: Figure) -> bytes:
    """Return a figure as a PNG file."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        # Characters missing in the font are drawn as boxes; per_class.csv has the full names.
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        figure.savefig(file, format="png", dpi=120)
    return file.getvalue()


def curves_png(lines: Sequence[dict[str, Any]]) -> bytes:
    """Return `curves` of a run as a PNG file, for its figures and, drawn once, for its report."""
    return _curves_png(json.dumps(list(lines)))


@functools.lru_cache(maxsize=1)
def _curves_png(lines: str) -> bytes:
    return to_png(curves(json.loads(lines)))


def curves(lines: Sequence[dict[str, Any]]) -> Figure:
    """Draw loss, accuracy and learning rate over the epochs, from the lines of `metrics.jsonl`.

    In place of the accuracy there is another metric of the task, or none. Accuracies of further
    evaluators, such as probes, are in a panel of their own.
    """
    training = [line for line in lines if line["kind"] == TRAIN]
    evaluations = [line for line in lines if line["kind"] in (EVALUATE, EVALUATOR, RESULT)]
    metric = _second_metric(training, evaluations)
    probes = [name for name in _metrics_of_evaluators(lines) if name != metric]
    compared = [name for name in ("loss", metric) if name]
    count = len(compared) + 1 + bool(probes)
    figure = Figure(figsize=(4 * count, 3.6), layout="constrained")
    panels = figure.subplots(1, count)
    panel_of = dict(zip((*compared, "learning_rate"), panels, strict=False))
    if probes:
        _draw_probes(panels[-1], evaluations, probes)
    for name, panel in panel_of.items():
        panel.set(xlabel="epoch", title=name.replace("_", " "))
        panel.grid(alpha=0.3)
        panel.plot(*_series(training, name), label="training", linewidth=1)
    for name in compared:
        for split in sorted({line["split"] for line in evaluations}):
            lines_of_split = [line for line in evaluations if line["split"] == split]
            panel_of[name].plot(*_series(lines_of_split, name), label=split, marker=".")
        panel_of[name].legend()
    return figure


def _metrics_of_evaluators(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Return the metrics of further evaluators that are fractions."""
    of_evaluators = [line for line in lines if line["kind"] == EVALUATOR]
    return [name for name in metric_names(of_evaluators) if is_share(name)]


def _draw_probes(panel: Axes, evaluations: Sequence[dict], names: Sequence[str]) -> None:
    """Draw metrics of further evaluators over the epochs, a line for each and each split."""
    panel.set(xlabel="epoch", title="further evaluators")
    panel.grid(alpha=0.3)
    for name in names:
        for split in sorted({line["split"] for line in evaluations if name in line}):
            lines_of_split = [line for line in evaluations if line["split"] == split]
            label = f"{split} {name.replace('_', ' ')}"
            panel.plot(*_series(lines_of_split, name), label=label, marker=".")
    panel.legend(fontsize=8)


def _second_metric(training: Sequence[dict], evaluations: Sequence[dict]) -> str:
    """Return the metric that is drawn beside the loss, one of training and evaluation if possible.

    Multi-label runs have no accuracy, other tasks have metrics of their own, or none: "".
    """
    of_evaluation = metric_names(evaluations)
    both = [name for name in of_evaluation if any(name in line for line in training)]
    usual = [name for name in SHARES if any(name in line for line in training)]
    return next(iter([*both, *of_evaluation, *usual]), "")


def confusion_matrix(predictions: Predictions, classes: int) -> Int[np.ndarray, "true predicted"]:
    """Return the number of examples of each true class (rows) predicted as each class (columns).

    Memory grows with the square of the classes; examples without a prediction are in no column.
    """
    return _confused(predictions, np.arange(classes), classes)[:, :classes]


def most_confused(
    predictions: Predictions, classes: int, count: int = _MOST_CONFUSED
) -> Int[np.ndarray, " classes"]:
    """Return the classes involved in the most errors, as true or as predicted class.

    count: number of classes; they are returned in class order.
    """
    wrong = ~predictions.right
    parts = np.bincount(predictions.labels[wrong], minlength=classes)
    parts += np.bincount(predictions.predicted[wrong & predictions.answered], minlength=classes)
    return np.sort(np.argsort(-parts, kind="stable")[:count])


def _confused(
    predictions: Predictions, shown: Int[np.ndarray, " shown"], classes: int
) -> Int[np.ndarray, "shown answers"]:
    """Count shown true classes (rows) by shown predictions, with all others in the last column."""
    places = np.full(classes + 1, -1)  # the last one is for no prediction, -1
    places[shown] = np.arange(len(shown))
    rows, columns = places[predictions.labels], places[predictions.predicted]
    matrix = np.zeros((len(shown), len(shown) + 1), np.int64)
    np.add.at(matrix, (rows[rows >= 0], columns[rows >= 0]), 1)
    return matrix


def confusion(predictions: Predictions, names: Sequence[str]) -> Figure:
    """Draw the confusion matrix; colours are fractions of each true class.

    With more than 100 classes it shows the 30 involved in the most errors, and all other
    predictions in one column. Images without a prediction are in that column, or in one of their
    own.
    """
    classes, title = len(names), f"accuracy {100 * predictions.right.mean():.2f} %"
    shown, rest = np.arange(classes), "not finite"
    if classes > _MOST_DRAWN_CLASSES:
        shown, rest = most_confused(predictions, classes), "another"
        title = f"the {len(shown)} of {classes:,} classes with the most errors\n{title} (of all)"
    matrix = _confused(predictions, shown, classes)
    shares = matrix / np.maximum(1, matrix.sum(axis=1, keepdims=True))
    labels = [short_name(names[number]) for number in shown]
    columns = [*labels, rest] if matrix[:, -1].any() else labels
    side = min(12, 3 + 0.4 * len(shown))
    figure = Figure(figsize=(side, side), layout="constrained")
    panel = figure.subplots()
    panel.imshow(shares[:, : len(columns)], cmap="Blues", vmin=0, vmax=1)
    panel.set(xlabel="predicted", ylabel="true", title=title)
    if len(shown) <= MOST_NAMED_CLASSES:
        upright = 90 if max(map(len, columns)) > 2 else 0
        panel.set_xticks(range(len(columns)), columns, rotation=upright, parse_math=False)
        panel.set_yticks(range(len(labels)), labels, parse_math=False)
        for row, column in zip(*np.nonzero(matrix), strict=True):
            color = "white" if shares[row, column] > 0.5 else "black"
            panel.text(column, row, matrix[row, column], ha="center", va="center", color=color)
    return figure


def most_confident_errors(
    predictions: Predictions, of_a_pair: int | None = None
) -> Int[np.ndarray, " mistakes"]:
    """Return the rows of wrong predictions, the most confident first, those without one last.

    of_a_pair: maximum number of errors between the same two classes, in either direction.
    """
    wrong = np.flatnonzero(~predictions.right)
    wrong = wrong[np.argsort(-predictions.confidence[wrong], kind="stable")]
    if of_a_pair is None:
        return wrong
    pairs = np.sort(np.stack([predictions.labels, predictions.predicted], axis=1)[wrong], axis=1)
    seen = Counter()
    kept = []
    for row, pair in zip(wrong, map(tuple, pairs.tolist()), strict=True):
        seen[pair] += 1
        if seen[pair] <= of_a_pair:
            kept.append(row)
    return np.array(kept, np.int64)


def mistakes(source: Source, predictions: Predictions) -> Figure:
    """Draw the most confident errors, with true and predicted classes.

    Each pair of classes occurs at most three times.
    """
    spread = most_confident_errors(predictions, _MOST_OF_A_PAIR)
    shown = spread[:_MOST_MISTAKES]
    columns = min(6, max(1, len(shown)))
    rows = max(1, -(-len(shown) // columns))
    figure = Figure(figsize=(2.1 * max(3, columns), 0.5 + 2.3 * rows), layout="constrained")
    wrong = int(np.count_nonzero(~predictions.right))
    title = f"{counted(wrong, 'error')} in {counted(len(predictions.labels), 'image')}"
    if len(shown) > 1:
        title += ", most confident first"
    if len(spread) < wrong:
        title += f", at most {_MOST_OF_A_PAIR} between the same two classes"
    figure.suptitle(title)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel in panels:
        panel.axis("off")
    for panel, row in zip(panels, shown, strict=False):
        image = still(source[int(predictions.index[row])]["image"])
        panel.imshow(image.squeeze(), cmap="gray" if image.shape[-1] == 1 else None)
        panel.set_title(
            f"{short_name(source.class_names[predictions.labels[row]])}, "
            f"{_said(predictions, row, source.class_names)}",
            fontsize=9,
            parse_math=False,  # a class name may be $5_$
        )
    return figure


def _said(predictions: Predictions, row: int, names: Sequence[str]) -> str:
    """Return the title of a misclassified image: its predicted class and confidence."""
    if not predictions.answered[row]:
        return "no prediction:\nlogits are not finite"
    confidence = 100 * predictions.confidence[row]
    return f"predicted\n{short_name(names[predictions.predicted[row]])} ({confidence:.0f} %)"


def _series(
    lines: Sequence[dict[str, Any]], name: str
) -> tuple[Float[np.ndarray, " lines"], Float[np.ndarray, " lines"]]:
    """Return epochs and values of one metric."""
    present = [line for line in lines if name in line]
    return (
        np.array([line["epoch"] for line in present]),
        np.array([line[name] for line in present]),
    )
