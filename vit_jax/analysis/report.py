"""A run on one page, for a colleague who was not there: what was set, what came out, what it cost.

The page is a single HTML file with its pictures inside, so it can be sent by mail. Whatever comes
from the run (names of classes, paths, settings) is escaped.
"""

import base64
import csv
import io
from collections.abc import Iterable, Sequence
from datetime import timedelta
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

from vit_jax.analysis.plots import curves, draw_figures
from vit_jax.config import default_config, flatten
from vit_jax.data import Source
from vit_jax.errors import UserError
from vit_jax.models.cost import cost
from vit_jax.presets import PRESETS
from vit_jax.runs import EVALUATE, RESULT, TRAIN, RunFolder
from vit_jax.training.metrics import SHARES, MultiLabelPredictions, Predictions

_MOST_CLASSES = 20  # rows of the table of the weakest classes

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; } td, th { padding: .15em 1.2em .15em 0; text-align: left; }
th { font-weight: 600; }
img { max-width: 100%; }
"""


def draw_all(
    run: RunFolder,
    lines: Sequence[dict[str, Any]],
    source: Source,
    predictions: Predictions | MultiLabelPredictions,
) -> None:
    """Writes the figures of a run and its report; what `fit` takes as `draw`."""
    draw_figures(run, lines, source, predictions)
    write_report(run, lines)


def write_report(run: RunFolder, lines: Sequence[dict[str, Any]] | None = None) -> Path:
    """Writes `figures/report.html` and returns its path.

    Args:
        run: a run folder, of a finished run or of one that is still under way.
        lines: of its log; by default those that stand in `metrics.jsonl`.

    Raises:
        UserError: where the folder holds no run, or nothing of it is logged yet.
    """
    config, lines = run.read_config(), run.read_metrics() if lines is None else lines
    if not lines:
        raise UserError(f"{run.path} has nothing to report yet: {run.metrics_file} has no line")
    name = run.path.resolve().name
    page = [
        f"<h1>{escape(name)}</h1>",
        f"<p>{escape(_headline(run, config, lines))}</p>",
        *_section("What was set", _settings(config)),
        *_section("What came out", _results(lines), _curves(lines)),
        *_section("Where it is wrong", *_figures(run), _weakest_classes(run)),
        *_section("What it cost", _table(_cost(run, config, lines))),
        *_section("What it ran on", _table(_versions(run))),
    ]
    run.figures.mkdir(parents=True, exist_ok=True)
    run.report_file.write_text(
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{escape(name)}</title>'
        f"\n<style>{_STYLE}</style>\n" + "\n".join(page) + "\n</html>\n",
        encoding="utf-8",
        errors="backslashreplace",  # a file name may hold bytes that are no text
    )
    return run.report_file


def _headline(run: RunFolder, config: dict[str, Any], lines: Sequence[dict[str, Any]]) -> str:
    """The run in a sentence."""
    record, last = run.read_model(), lines[-1]
    task = f"{record.name} on {config['dataset']}, {len(record.class_names)} classes"
    if last["kind"] != RESULT:
        return f"{task}; not finished: this is as of step {last['step']:,}."
    metric = next((m for m in ("accuracy", "mean_average_precision") if m in last), "loss")
    return (
        f"{task}: {_words(metric)} {_value(metric, last[metric])} on the {last['split']} data "
        f"({last.get('examples', 0):,} pictures) after {last['epoch']:.1f} epochs."
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
        return "<p>Everything is as by default.</p>"
    return _table(rows)


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
            if name in SHARES or name == "loss"
        )
        rows.append((f"{line['split']}, {of}", f"step {line['step']:,}", numbers))
    return _table(rows)


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


def _versions(run: RunFolder) -> list[tuple[str, str]]:
    """The devices and the libraries."""
    hardware = run.read_hardware()
    rows = list(run.read_model().versions.items())
    if hardware is None:
        return rows
    peak = f"{hardware['peak_flops'] / 1e12:,.3g} TFLOP/s ({hardware['peak_from']})"
    return [("devices", f"{hardware['count']} x {hardware['device']}"), ("peak", peak), *rows]


def _curves(lines: Sequence[dict[str, Any]]) -> str:
    picture = io.BytesIO()
    curves(lines).savefig(picture, format="png", dpi=120)
    return _image(picture.getvalue(), "curves")


def _figures(run: RunFolder) -> list[str]:
    """The pictures that were drawn at the end of the run, as far as they are there."""
    files = [run.figures / f"{name}.png" for name in ("confusion", "mistakes")]
    return [_image(path.read_bytes(), path.stem) for path in files if path.exists()]


def _weakest_classes(run: RunFolder) -> str:
    """The classes that are found least often, from `per_class.csv`."""
    path = run.figures / "per_class.csv"
    if not path.exists():
        return ""
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["recall"]]
    weakest = sorted(rows, key=lambda row: float(row["recall"]))[:_MOST_CLASSES]
    cells = [
        (row["name"], f"{100 * float(row['recall']):.2f} % found", f"of {row['examples']}")
        for row in weakest
    ]
    return f"<p>The classes found least often:</p>{_table(cells)}" if cells else ""


# --------------------------------------------------------------------------------- pieces of a page


def _section(title: str, *parts: str) -> Iterable[str]:
    """A heading and what stands below it; nothing where there is nothing."""
    there = [part for part in parts if part]
    return [f"<h2>{escape(title)}</h2>", *there] if there else []


def _table(rows: Iterable[Sequence[str]]) -> str:
    """Rows of a name and some texts."""
    body = "".join(
        f"<tr><th>{escape(name)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for name, *cells in rows
    )
    return f"<table>{body}</table>" if body else ""


def _image(png: bytes, name: str) -> str:
    data = base64.b64encode(png).decode()
    return f'<p><img alt="{escape(name)}" src="data:image/png;base64,{data}"></p>'


def _words(metric: str) -> str:
    return metric.replace("_", " ")


def _value(metric: str, value: float) -> str:
    return f"{100 * value:.2f} %" if metric in SHARES else f"{value:.4f}"


def _shown(value: Any) -> str:
    return "(empty)" if value == "" else str(value)


def _plain(value: Any) -> Any:
    """A value as JSON gives it back, so that a tuple equals its list."""
    return list(value) if isinstance(value, tuple) else value
