"""Report of a run on one page: result, curves, errors, calibration, cost and configuration.

The page is a single HTML file with its images inside, so it can be sent by mail. All text of the
run (class names, paths, settings) is escaped.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

from vit_jax.analysis.errors.calibration_report import calibration_parts
from vit_jax.analysis.report.figure_parts import (
    attention_parts,
    class_size_parts,
    curves_part,
    diagnostic_parts,
    error_parts,
    task_parts,
)
from vit_jax.analysis.report.figures import draw_figures
from vit_jax.analysis.report.html import Section, cards, code, page, paragraph, table, wide
from vit_jax.analysis.weights_view.tables import confidence_interval
from vit_jax.config import default_config, flatten
from vit_jax.config.augment_presets import PRESETS
from vit_jax.data import Source
from vit_jax.errors import UserError
from vit_jax.evaluation.base import Result
from vit_jax.evaluation.metrics import SHARES, metric_names, shown_name, shown_value
from vit_jax.models.summary.cost import Cost, cost
from vit_jax.runs import EVALUATE, EVALUATOR, RESULT, TRAIN, RunDir
from vit_jax.text import counted
from vit_jax.training.logging.provenance import DATE


def draw_all(
    run: RunDir,
    lines: Sequence[dict[str, Any]],
    source: Source,
    result: Result,
) -> None:
    """Write the figures of a run and its report; the `draw` argument of `fit`."""
    try:
        draw_figures(run, lines, source, result.table, result.figures)
    finally:
        write_report(run, lines)


def write_report(run: RunDir, lines: Sequence[dict[str, Any]] | None = None) -> Path:
    """Write `figures/report.html` and return its path.

    Args:
        run: a run folder, finished or unfinished.
        lines: of its log; by default those in `metrics.jsonl`.

    Raises:
        UserError: the folder has no run, or no log lines yet.
    """
    lines = check_reportable(run, lines)
    config = run.read_config()
    name = run.path.resolve().name
    size = cost(run.read_model().create_model())
    sections = [
        Section("Results", [cards(_key_figures(size, lines)), _command(run), _results(lines)]),
        Section("Training curves", [curves_part(lines)]),
        Section("Predictions", list(task_parts(run))),
        Section("Errors", list(error_parts(run))),
        Section("Calibration", list(calibration_parts(run, config))),
        Section("Accuracy by class size", list(class_size_parts(run))),
        Section("Attention", list(attention_parts(run))),
        Section("Diagnostics", list(diagnostic_parts(run))),
        Section("Hardware", [table(_cost(size, config, lines)), table(_provenance(run, config))]),
        Section("Configuration", [_settings(config)]),
    ]
    run.figures.mkdir(parents=True, exist_ok=True)
    run.report_file.write_text(
        page(name, _headline(run, config, lines), sections),
        encoding="utf-8",
        errors="backslashreplace",  # a file name may hold bytes that are not UTF-8
    )
    return run.report_file


def check_reportable(
    run: RunDir, lines: Sequence[dict[str, Any]] | None = None
) -> Sequence[dict[str, Any]]:
    """Return the lines of a run's log; raise UserError if there is nothing to report."""
    if run.is_run() and not run.config_file.exists():
        raise UserError(
            f"{run.path} has weights that were not trained here, so there is no run to report; "
            f"evaluate them with python -m vit_jax evaluate {run.path} --dataset=DATASET, or "
            f"train them with --config.init_from={run.path}"
        )
    run.read_config()
    run.check_format()
    lines = run.read_metrics() if lines is None else lines
    if not lines:
        raise UserError(f"{run.path} has nothing to report yet: {run.metrics_file} has no lines")
    return lines


def _headline(run: RunDir, config: dict[str, Any], lines: Sequence[dict[str, Any]]) -> str:
    """Return a sentence on the run."""
    record, last = run.read_model(), lines[-1]
    learned = record.task.replace("_", " ")
    if record.class_names:
        learned = counted(len(record.class_names), "class", "classes")
    task = f"{record.name} on {config['dataset']}, {learned}"
    if last["kind"] != RESULT:
        return f"{task}; unfinished, as of step {last['step']:,}."
    usual = ("accuracy", "mean_average_precision", "loss", *metric_names([last]))
    metric = next(name for name in usual if name in last)
    value = shown_value(metric, last[metric])
    return (
        f"{task}: {shown_name(metric)} {value} on the {last['split']} data "
        f"({counted(last.get('examples', 0), 'image')}) after {last['epoch']:.1f} epochs."
    )


def _key_figures(size: Cost, lines: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Yield the last evaluation, the size of the model and the training time."""
    evaluations = [line for line in lines if line["kind"] in (EVALUATE, RESULT)]
    for line in evaluations[-1:]:
        for metric in ("accuracy", "mean_average_precision"):
            if metric in line:
                interval = ""
                if metric == "accuracy" and (images := line.get("examples")):
                    low, high = confidence_interval(line[metric], images)
                    interval = f"95 % interval {100 * low:.2f} to {100 * high:.2f} %"
                yield (
                    f"{line['split']} {shown_name(metric)}",
                    shown_value(metric, line[metric]),
                    interval,
                )
        yield from _further_metrics(line, lines)
        if "loss" in line:
            yield f"{line['split']} loss", shown_value("loss", line["loss"]), ""
    yield "parameters", f"{size.parameters:,}", f"{size.macs / 1e6:,.1f} MMACs an image"
    if elapsed := _elapsed(lines):
        yield "training time", elapsed, f"{lines[-1]['epoch']:.1f} epochs"


def _further_metrics(
    line: dict[str, Any], lines: Sequence[dict[str, Any]]
) -> Iterator[tuple[str, str, str]]:
    """Yield the metrics besides the main one of an evaluation, and the last of each evaluator."""
    of_evaluators = {one["evaluator"]: one for one in lines if one["kind"] == EVALUATOR}
    unfinished = of_evaluators.values() if line["kind"] != RESULT else ()
    for one in (line, *unfinished):  # a result has the metrics of all evaluators
        for metric in metric_names([one]):
            usual = metric in SHARES and ("accuracy" in one or metric == "mean_average_precision")
            if not usual:
                yield f"{one['split']} {shown_name(metric)}", shown_value(metric, one[metric]), ""


def _command(run: RunDir) -> str:
    """Return the command that started the run, if it is known."""
    command = (run.read_hardware() or {}).get("command")
    return code(command) if command else ""


def _elapsed(lines: Sequence[dict[str, Any]]) -> str:
    """Return wall time in hours, minutes and seconds; empty if it was not logged."""
    seconds = [line["elapsed_seconds"] for line in lines if "elapsed_seconds" in line]
    return str(timedelta(seconds=round(max(seconds)))) if seconds else ""


def _settings(config: dict[str, Any]) -> str:
    """Return a table of the keys whose values are not the defaults, with the defaults."""
    default = {**dict(flatten(default_config())), **PRESETS[config["augment"]["preset"]]}
    rows = []
    for path, value in flatten(config):
        usual = default.get(path, "of the model")
        if _plain(value) != _plain(usual):
            rows.append((path, _shown(value), _shown(usual)))
    if not rows:
        return paragraph("All keys have their default values.")
    return table(rows, ("Key", "Value", "Default"))


def _results(lines: Sequence[dict[str, Any]]) -> str:
    """Return a table of the last evaluation of each split, and the best one."""
    evaluations = [line for line in lines if line["kind"] in (EVALUATE, RESULT)]
    last = list({line["split"]: line for line in evaluations}.values())
    best = [line for line in evaluations if line.get("best")][-1:]
    named = [*metric_names(last), "loss", "nonfinite"]
    metrics = [metric for metric in named if any(metric in line for line in last)]
    rows = []
    for line, which in [*((line, "last") for line in last), *((line, "best") for line in best)]:
        values = [
            shown_value(metric, line[metric]) if metric in line else "-" for metric in metrics
        ]
        rows.append((f"{line['split']}, {which}", f"{line['step']:,}", *values))
    return wide(table(rows, ("Split", "Step", *map(shown_name, metrics))))


def _cost(
    size: Cost, config: dict[str, Any], lines: Sequence[dict[str, Any]]
) -> list[tuple[str, str]]:
    """Return a table of model size, time and memory."""
    training = [line for line in lines if line["kind"] == TRAIN]
    step = lines[-1]["step"]
    rows = [
        ("parameters", f"{size.parameters:,}"),
        ("multiply-adds per image, forward", f"{size.macs:,}"),
        ("steps", f"{step:,}"),
        ("training images processed", f"{step * config['batch_size']:,}"),
    ]
    if elapsed := _elapsed(lines):
        rows.append(("wall time, compilation and evaluation included", elapsed))
    for name, words, form in (
        ("images_per_second", "images per second, median", "{:,.0f}"),
        ("step_seconds", "seconds per step, median", "{:.4f}"),
        ("data_seconds", "- waiting for data", "{:.4f}"),
        ("device_seconds", "- device busy", "{:.4f}"),
        ("host_seconds", "- waiting for the host", "{:.4f}"),
        ("flops_utilisation", "utilization of peak FLOP/s, median", "{:.1%}"),
        ("peak_memory_gib", "peak memory, GiB", "{:.2f}"),
    ):
        values = [line[name] for line in training if name in line]
        if values:
            middle = max(values) if name == "peak_memory_gib" else median(values)
            rows.append((words, form.format(middle)))
    return rows


def _provenance(run: RunDir, config: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the provenance of a run: seed, data, devices, libraries."""
    hardware = run.read_hardware() or {}
    rows = [("seed", str(config["seed"]))]
    if "begun" in hardware:
        rows.append(("started", hardware["begun"]))
    rows.append(("report written", datetime.now(UTC).strftime(DATE)))
    rows += [
        (f"data fingerprint, {split}", text) for split, text in hardware.get("data", {}).items()
    ]
    if "device" in hardware:
        peak = f"{hardware['peak_flops'] / 1e12:,.3g} TFLOP/s ({hardware['peak_from']})"
        rows += [("devices", f"{hardware['count']} x {hardware['device']}"), ("peak", peak)]
    return [*rows, *run.read_model().versions.items()]


# --------------------------------------------------------------------------------- text helpers


def _shown(value: Any) -> str:
    return "(empty)" if value == "" else str(value)


def _plain(value: Any) -> Any:
    """Return a value after a round trip through JSON, so that a tuple equals its list."""
    return list(value) if isinstance(value, tuple) else value
