"""Parts of the report that show and explain the figures of a run."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vit_jax.analysis.errors.long_tail import is_balanced, read_long_tail, shot_groups
from vit_jax.analysis.report.figures import OF_TASK, curves_png
from vit_jax.analysis.report.html import image, note, percent, stored, table, titled, wide
from vit_jax.csv_files import read_csv
from vit_jax.evaluation.dense.segmentation import PixelCounts
from vit_jax.evaluation.metrics import read_per_class
from vit_jax.runs import RunDir
from vit_jax.text import counted

_MOST_CLASSES = 20  # rows in the table of the weakest classes
_MOST_ERRORS = 10  # rows in the table of the most confident errors


def curves_part(lines: Sequence[dict[str, Any]]) -> str:
    """Return the curves of a run over its epochs."""
    return image(
        curves_png(lines),
        "Curves of loss, accuracy and learning rate over the epochs",
        "Training, evaluation and learning rate by epoch. Training far better than evaluation "
        "means overfitting; both still improving at the end means that the run was too short. "
        "Augmentation and label smoothing affect the training curve only, and can put it below "
        "the evaluation curve.",
        wide=True,
    )


def task_parts(run: RunDir) -> Iterator[str]:
    """Yield the figures that the task drew itself."""
    for path in sorted(run.figures.glob(f"{OF_TASK}*.png")):
        title = path.stem.removeprefix(OF_TASK).replace("_", " ").capitalize()
        yield stored(run, path.stem, title, f"{title}.", wide=True)
    path = run.figures / PixelCounts.file
    if path.exists():
        rows = [tuple(_pixel_cells(row)) for row in read_csv(path)]
        columns = ("Class", "Pixels", "IoU", "Recall", "Precision")
        yield wide(titled("Classes of pixels", table(rows, columns)))


def _pixel_cells(row: Mapping[str, str]) -> Iterator[str]:
    name, pixels, *shares = row.values()
    yield from (name, f"{int(pixels):,}")
    yield from (percent(float(share)) if share else "-" for share in shares)


def error_parts(run: RunDir) -> Iterator[str]:
    """Yield confusion matrix, most confident errors with files, and classes of lowest recall."""
    path = run.figures / "per_class.csv"
    rows = [row for row in read_per_class(path) if row.recall is not None] if path.exists() else []
    missed = sorted((row for row in rows if row.recall < 1), key=lambda row: row.recall)
    if any(row.average_precision is not None for row in rows):
        yield note(
            "Images here may have several labels, or none, so there is no confusion matrix, and "
            "no most confident errors."
        )
    yield stored(
        run,
        "confusion",
        "Confusion matrix: true classes in rows, predicted classes in columns",
        "Images of each true class (rows) by predicted class (columns); the color is the share of "
        "the row. A dark cell off the diagonal is a pair of classes that the model confuses, in "
        "that direction. With more than 100 classes, the 30 with the most errors are shown, and "
        "other answers share the last column.",
    )
    yield titled(
        "Classes with the lowest recall",
        table(
            (
                (row.name, f"{100 * row.recall:.2f} %", f"of {row.examples}")
                for row in missed[:_MOST_CLASSES]
            ),
            ("Class", "Recall", "Images"),
        ),
    )
    if rows and not missed:
        yield note("Every test image is classified correctly.")
    if missed:  # otherwise the figure is empty
        yield stored(
            run,
            "mistakes",
            "The most confident errors of the model",
            "The most confident errors, with the true class, the predicted class and its "
            "probability; at most three for each pair of classes. Look for wrong labels, images "
            "that a person would find ambiguous too, and what several of them have in common.",
            wide=True,
        )
        yield wide(
            titled(
                "Most confident errors",
                table(_most_confident_errors(run), ("Image", "True", "Predicted", "Probability")),
            )
        )
    yield stored(
        run,
        "saliency",
        "Saliency maps of the most confident errors",
        "Evidence for the predicted against the true class. Gradient: where a small change of "
        "the image would change the difference of their logits most. Integrated gradients: which "
        "parts of this image, compared with a black one, support the predicted class (red) or the "
        "true one (blue); they sum to the change in the difference of the two logits.",
        wide=True,
    )


def _most_confident_errors(run: RunDir) -> list[tuple[str, str, str, str]]:
    """Return image, true class, predicted class and its probability; empty if none are saved."""
    path = run.figures / "predictions.csv"
    if not path.exists():
        return []
    wrong = [
        row for row in read_csv(path) if row.get("confidence") and row["predicted"] != row["true"]
    ]
    wrong.sort(key=lambda row: -float(row["confidence"]))
    return [
        (row["image"], row["true"], row["predicted"], percent(float(row["confidence"])))
        for row in wrong[:_MOST_ERRORS]
    ]


def class_size_parts(run: RunDir) -> Iterator[str]:
    """Yield recall by number of training images, and groups of classes if sizes differ."""
    path = run.figures / "long_tail.csv"
    if not path.exists():
        return
    sizes = read_long_tail(path)
    yield stored(
        run,
        "long_tail",
        "Recall of every class by its number of training images",
        "Recall of each class on the test data, with 95 % intervals (Wilson). Where classes differ "
        "in size, a curve that falls to the left means that small classes are learned worse; where "
        "intervals overlap, the order of classes may be chance.",
    )
    if not is_balanced(sizes):
        yield table(
            (
                f"{group.name}-shot",
                counted(group.classes, "class", "classes"),
                counted(group.training, "training image"),
                percent(group.recall),
            )
            for group in shot_groups(sizes)
        )
        yield note(
            "Many-shot: over 100 training images; medium: 20 to 100; few: under 20 (Liu et al. "
            "2019). Recall is the mean over the classes of a group."
        )


def diagnostic_parts(run: RunDir) -> Iterator[str]:
    """Yield the measurements inside the blocks over the steps."""
    yield stored(
        run,
        "diagnostics",
        "Attention, ranks, gradients and updates of every block over the steps",
        "Every block by step. An entropy of 1 means uniform attention, 0 attention to a single "
        "token; bands cover the heads, and crosses mark blocks all of whose heads are at one of "
        "the two ends. A gradient far below the others means a block that hardly learns, and "
        "updates of a tenth of the parameters a learning rate that is too high.",
        wide=True,
    )


def attention_parts(run: RunDir) -> Iterator[str]:
    """Yield test images with the attention of the last layer."""
    yield stored(
        run,
        "attention",
        "Test images with the attention of the last layer drawn over them",
        "Test images, and overlays of the attention of the last layer, mean of the heads: bright "
        "areas get the most attention. Attention on the background, or on one "
        "corner in all images, deserves a second look; high attention does not by itself mean that "
        "the prediction depends on that area.",
        wide=True,
    )
