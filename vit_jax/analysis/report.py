"""A run on one page, for a colleague who was not there: what was set, what came out, what it cost.

The page is a single HTML file with its pictures inside, so it can be sent by mail. Whatever comes
from the run (names of classes, paths, settings) is escaped.
"""

import io
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

from vit_jax.analysis.calibration_report import calibration_parts
from vit_jax.analysis.class_sizes import is_balanced, read_class_sizes, shot_groups
from vit_jax.analysis.page import (
    Section,
    heading,
    note,
    page,
    paragraph,
    percent,
    picture,
    stored,
    table,
)
from vit_jax.analysis.plots import curves, draw_figures
from vit_jax.config import default_config, flatten
from vit_jax.data import Source
from vit_jax.errors import UserError
from vit_jax.models.cost import cost
from vit_jax.presets import PRESETS
from vit_jax.runs import EVALUATE, RESULT, TRAIN, RunFolder
from vit_jax.text import counted
from vit_jax.training.metrics import (
    SHARES,
    MultiLabelPredictions,
    Predictions,
    read_per_class,
)
from vit_jax.training.provenance import DATE

_MOST_CLASSES = 20  # rows of the table of the weakest classes


def draw_all(
    run: RunFolder,
    lines: Sequence[dict[str, Any]],
    source: Source,
    predictions: Predictions | MultiLabelPredictions,
) -> None:
    """Writes the figures of a run and its report; what `fit` takes as `draw`."""
    try:
        draw_figures(run, lines, source, predictions)
    finally:
        write_report(run, lines)


def write_report(run: RunFolder, lines: Sequence[dict[str, Any]] | None = None) -> Path:
    """Writes `figures/report.html` and returns its path.

    Args:
        run: a run folder, of a finished run or of one that is still under way.
        lines: of its log; by default those that stand in `metrics.jsonl`.

    Raises:
        UserError: where the folder holds no run, or nothing of it is logged yet.
    """
    lines = check_reportable(run, lines)
    config = run.read_config()
    name = run.path.resolve().name
    sections = [
        Section("What was set", [_settings(config)]),
        Section("What came out", [_results(lines), _curves(lines)]),
        Section("What happened inside", list(_inside(run))),
        Section("Where it is wrong", list(_failures(run))),
        Section("How sure it is", list(calibration_parts(run, config))),
        Section("Classes by size", list(_class_sizes(run))),
        Section("Where it looks", list(_attention(run))),
        Section("What it cost", [table(_cost(run, config, lines))]),
        Section("What it ran on", [table(_provenance(run, config))]),
    ]
    run.figures.mkdir(parents=True, exist_ok=True)
    run.report_file.write_text(
        page(name, _headline(run, config, lines), sections),
        encoding="utf-8",
        errors="backslashreplace",  # a file name may hold bytes that are no text
    )
    return run.report_file


def check_reportable(
    run: RunFolder, lines: Sequence[dict[str, Any]] | None = None
) -> Sequence[dict[str, Any]]:
    """The lines of a run's log; raises UserError where there is nothing to report."""
    if run.is_run() and not run.config_file.exists():
        raise UserError(
            f"{run.path} holds weights that were not trained here, so there is no run to report; "
            f"python -m vit_jax evaluate {run.path} --dataset=DATASET says what they are worth, "
            f"and --config.init_from={run.path} trains them further"
        )
    run.read_config()
    lines = run.read_metrics() if lines is None else lines
    if not lines:
        raise UserError(f"{run.path} has nothing to report yet: {run.metrics_file} has no line")
    return lines


def _headline(run: RunFolder, config: dict[str, Any], lines: Sequence[dict[str, Any]]) -> str:
    """The run in a sentence."""
    record, last = run.read_model(), lines[-1]
    classes = counted(len(record.class_names), "class", "classes")
    task = f"{record.name} on {config['dataset']}, {classes}"
    if last["kind"] != RESULT:
        return f"{task}; not finished: this is as of step {last['step']:,}."
    metric = next((m for m in ("accuracy", "mean_average_precision") if m in last), "loss")
    return (
        f"{task}: {_words(metric)} {_value(metric, last[metric])} on the {last['split']} data "
        f"({counted(last.get('examples', 0), 'image')}) after {last['epoch']:.1f} epochs."
    )


def _settings(config: dict[str, Any]) -> str:
    """Every key whose value is not the default, with the default beside it."""
    default = {**dict(flatten(default_config())), **PRESETS[config["augment"]["preset"]]}
    rows = []
    for path, value in flatten(config):
        usual = default.get(path, "the model's own")
        if _plain(value) != _plain(usual):
            rows.append((path, _shown(value), f"default: {_shown(usual)}"))
    if not rows:
        return paragraph("Everything is as by default.")
    return table(rows)


def _results(lines: Sequence[dict[str, Any]]) -> str:
    """The last evaluation of each split, and the best one."""
    evaluations = [line for line in lines if line["kind"] in (EVALUATE, RESULT)]
    shown = list({line["split"]: line for line in evaluations}.values())
    best = [line for line in evaluations if line.get("best")][-1:]
    rows = []
    for line, of in [*((line, "last") for line in shown), *((line, "best") for line in best)]:
        numbers = ", ".join(
            f"{_words(name)} {_value(name, value)}"
            for name, value in line.items()
            if name in (*SHARES, "loss", "nonfinite")
        )
        rows.append((f"{line['split']}, {of}", f"step {line['step']:,}", numbers))
    return table(rows)


def _cost(
    run: RunFolder, config: dict[str, Any], lines: Sequence[dict[str, Any]]
) -> list[tuple[str, str]]:
    """What the model takes and what the run took."""
    numbers = cost(run.read_model().create_model())
    training = [line for line in lines if line["kind"] == TRAIN]
    step = lines[-1]["step"]
    rows = [
        ("parameters", f"{numbers.parameters:,}"),
        ("multiply-adds of a picture's forward pass", f"{numbers.macs:,}"),
        ("steps", f"{step:,}"),
        ("pictures seen in training", f"{step * config['batch_size']:,}"),
    ]
    elapsed = [line["elapsed_seconds"] for line in lines if "elapsed_seconds" in line]
    if elapsed:
        duration = timedelta(seconds=round(max(elapsed)))
        rows.append(("wall time, compilation and evaluation included", str(duration)))
    for name, words, form in (
        ("images_per_second", "pictures a second, median", "{:,.0f}"),
        ("step_seconds", "seconds a step, median", "{:.4f}"),
        ("data_seconds", "- of which waiting for data", "{:.4f}"),
        ("device_seconds", "- of which the device worked", "{:.4f}"),
        ("host_seconds", "- of which waiting for the host", "{:.4f}"),
        ("flops_utilisation", "share of the devices' peak FLOP/s, median", "{:.1%}"),
        ("peak_memory_gib", "most memory in use, GiB", "{:.2f}"),
    ):
        values = [line[name] for line in training if name in line]
        if values:
            middle = max(values) if name == "peak_memory_gib" else median(values)
            rows.append((words, form.format(middle)))
    return rows


def _provenance(run: RunFolder, config: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what a repetition needs: command, seed, data, devices, libraries."""
    hardware = run.read_hardware() or {}
    rows = [("seed", str(config["seed"]))]
    rows += [(name, hardware[name]) for name in ("command", "begun") if name in hardware]
    rows.append(("page written", datetime.now(UTC).strftime(DATE)))
    rows += [
        (f"fingerprint of the data, {split}", text)
        for split, text in hardware.get("data", {}).items()
    ]
    if "device" in hardware:
        peak = f"{hardware['peak_flops'] / 1e12:,.3g} TFLOP/s ({hardware['peak_from']})"
        rows += [("devices", f"{hardware['count']} x {hardware['device']}"), ("peak", peak)]
    return [*rows, *run.read_model().versions.items()]


def _curves(lines: Sequence[dict[str, Any]]) -> str:
    png = io.BytesIO()
    curves(lines).savefig(png, format="png", dpi=120)
    return picture(
        png.getvalue(),
        "Curves of loss, accuracy and learning rate over the epochs",
        "Training, evaluation and learning rate over the epochs. Training that is far better than "
        "evaluation means that the pictures are known by heart; both still getting better at the "
        "end means that the run was too short. Augmentation and label smoothing touch the training "
        "curve alone, and can turn the order round.",
        wide=True,
    )


def _failures(run: RunFolder) -> Iterator[str]:
    """Confusion, mistakes, what speaks for them, and the classes found least often."""
    path = run.figures / "per_class.csv"
    rows = [row for row in read_per_class(path) if row.recall is not None] if path.exists() else []
    missed = sorted((row for row in rows if row.recall < 1), key=lambda row: row.recall)
    if any(row.average_precision is not None for row in rows):
        yield note(
            "Pictures here may have several labels, or none, so there is no confusion matrix, and "
            "no single answer that could be a mistake."
        )
    yield stored(
        run,
        "confusion",
        "Confusion matrix: true classes in rows, predicted classes in columns",
        "How many pictures of each true class (rows) were taken for each class (columns); the "
        "colour is the share of the row. A dark cell off the diagonal is a pair of classes that "
        "the model mixes up, in that direction. Of more than 100 classes these are the 30 that "
        "take part in the most mistakes, and other answers share the last column.",
    )
    if missed:  # or the picture is empty
        yield stored(
            run,
            "mistakes",
            "The mistakes that the model was most sure of",
            "The mistakes that the model was most sure of, with the true class, the class it said, "
            "and the probability it gave that; of each pair of classes three at most. Look for "
            "labels that are wrong, pictures that a person would doubt too, and what several of "
            "them have in common.",
            wide=True,
        )
    yield stored(
        run,
        "saliency",
        "What in the surest mistakes speaks for the wrong class and what for the true one",
        "What decides between the wrong class and the true one. Gradient: where a small change of "
        "the picture would shift the balance most. Integrated gradients: what of this picture, "
        "compared with a black one, spoke for the class that was said (red) and for the true one "
        "(blue); they sum to how much further apart the two logits are than for the black one.",
        wide=True,
    )
    if missed:
        yield heading("The classes found least often")
        yield table(
            (row.name, f"{100 * row.recall:.2f} % found", f"of {row.examples}")
            for row in missed[:_MOST_CLASSES]
        )
    elif rows:
        yield note("Every test picture of every class is found.")


def _class_sizes(run: RunFolder) -> Iterator[str]:
    """Recall over the number of training pictures, and groups of classes where these differ."""
    path = run.figures / "class_sizes.csv"
    if not path.exists():
        return
    sizes = read_class_sizes(path)
    yield stored(
        run,
        "class_sizes",
        "Recall of every class over its number of training pictures",
        "The share of its test pictures that each class is found in, with 95 % intervals (Wilson). "
        "Where classes differ in size, a curve that falls to the left says that small classes are "
        "learned worse; where intervals overlap, the order of classes may be chance.",
    )
    if not is_balanced(sizes):
        yield table(
            (
                f"{group.name}-shot",
                counted(group.classes, "class", "classes"),
                counted(group.training, "training image"),
                f"{percent(group.recall)} found, mean over the classes",
            )
            for group in shot_groups(sizes)
        )
        yield note(
            "Many-shot: over 100 training pictures; medium: 20 to 100; few: under 20 (Liu et al. "
            "2019)."
        )


def _inside(run: RunFolder) -> Iterator[str]:
    yield stored(
        run,
        "inside",
        "Attention, ranks, gradients and updates of every block over the steps",
        "Every block over the steps. Entropy at 1 means attention to all places alike, at 0 to a "
        "single one; bands reach over the heads, and crosses mark blocks all of whose heads are at "
        "one of the two ends. A gradient that falls far below the others means a block that hardly "
        "learns, and updates of a tenth of the parameters a learning rate that is too high.",
        wide=True,
    )


def _attention(run: RunFolder) -> Iterator[str]:
    yield stored(
        run,
        "attention",
        "Test pictures with the attention of the last layer drawn over them",
        "Test pictures, and the attention of the last layer, mean of the heads, over them: bright "
        "is where the answer takes its information from. Attention on the background, or on one "
        "corner in all pictures, is worth a second look; that a place is bright does not by itself "
        "mean that the answer hangs on it.",
        wide=True,
    )


# --------------------------------------------------------------------------------- pieces of text


def _words(metric: str) -> str:
    return "without finite logits" if metric == "nonfinite" else metric.replace("_", " ")


def _value(metric: str, value: float) -> str:
    if metric == "nonfinite":
        return f"{value:,}"
    return f"{100 * value:.2f} %" if metric in SHARES else f"{value:.4f}"


def _shown(value: Any) -> str:
    return "(empty)" if value == "" else str(value)


def _plain(value: Any) -> Any:
    """A value as JSON gives it back, so that a tuple equals its list."""
    return list(value) if isinstance(value, tuple) else value
