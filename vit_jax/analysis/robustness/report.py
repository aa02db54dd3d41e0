"""Report of the command `robustness`: tables, sentences, CSV, JSON and figures.

The tests are run in `evaluate.py` and drawn in `plots.py`.
"""

import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from vit_jax.analysis.figures import short_name
from vit_jax.analysis.robustness.evaluate import Result, corruption_errors
from vit_jax.analysis.robustness.plots import (
    corruption_curves,
    curves,
    level_name,
    occlusion_maps,
    shape_plot,
)
from vit_jax.analysis.robustness.shape_texture import Decisions
from vit_jax.analysis.robustness.suite import Perturbation
from vit_jax.csv_files import write_csv
from vit_jax.errors import UserError
from vit_jax.text import counted, table_cell, to_json

# --------------------------------------------------------------------------------------- the screen


def tables(results: Sequence[Result]) -> Iterator[Table]:
    """Yield a table for each kind of level, with a row for each test and model; then a summary."""
    groups: dict[str, list[Perturbation]] = {}
    for test in (test for result in results for test in result.tests):
        known = groups.setdefault("places" if test.places else test.axis, [])
        if test.name not in [other.name for other in known]:
            known.append(test)
    for axis, tests in groups.items():
        yield _map_table(results) if axis == "places" else _level_table(axis, tests, results)
    if results:
        yield _summary(results)


def _level_table(axis: str, tests: Sequence[Perturbation], results: Sequence[Result]) -> Table:
    """Create a table of accuracies: a row for each test and model, a column for each level."""
    several = len(results) > 1
    levels = {level: level_name(test, level) for test in tests for level in test.levels}
    kinds = ", ".join(dict.fromkeys(test.kind.replace("_", " ") for test in tests))
    table = Table("accuracy, %", title=f"{kinds} by {table_cell(axis)}", title_justify="left")
    if several:
        table.add_column("run", overflow="fold")
    for heading in ("clean", *levels.values(), "mean"):
        table.add_column(heading, justify="right")
    rows: dict[str, list[np.ndarray]] = {}
    for test in tests:
        for result in results:
            if test.name not in result.scores:
                continue
            accuracies = result.accuracies(test.name)
            rows.setdefault(result.name, []).append(accuracies)
            _add_row(table, test.name, result, accuracies, several)
        if several:
            table.add_section()
    if len(tests) > 1 and tests[0].kind == "corruptions":
        table.add_section()
        for result in results:
            _add_row(table, "mean", result, np.mean(rows[result.name], axis=0), several)
    return table


def _add_row(table: Table, name: str, result: Result, values: np.ndarray, several: bool) -> None:
    cells = [name.replace("_", " "), *([table_cell(result.name)] if several else [])]
    numbers = (result.clean.accuracy, *values, values.mean())
    table.add_row(*cells, *(f"{100 * number:.1f}" for number in numbers))


def _map_table(results: Sequence[Result]) -> Table:
    """Create a table of three numbers on the sliding square; the map is in a figure."""
    table = Table("accuracy, %", title="occlusion by position of a square", title_justify="left")
    for heading in ("square", "clean", "mean", "best position", "worst position"):
        table.add_column(heading, justify="right")
    for result in results:
        for test in (test for test in result.tests if test.places):
            values = result.accuracies(test.name)
            numbers = (result.clean.accuracy, values.mean(), values.max(), values.min())
            side = test.axis.removeprefix("position of a square of ")
            table.add_row(table_cell(result.name), side, *(f"{100 * n:.1f}" for n in numbers))
    return table


def _summary(results: Sequence[Result]) -> Table:
    """Create a table of the accuracy on clean images and the errors under corruption."""
    several = len(results) > 1
    table = Table("run", title="summary, %", title_justify="left")
    headings = ["clean accuracy"]
    if any(corruption_errors(result) for result in results):
        headings += ["error under corruption", "increase over clean"]
        headings += (
            [f"mCE, {short_name(results[0].name, 16)} = 100", "relative mCE"] if several else []
        )
    for heading in headings:
        table.add_column(heading, justify="right")
    for result in results:
        numbers = [result.clean.accuracy]
        if errors := corruption_errors(result, results[0] if several else None):
            numbers += [errors.mean_error, errors.mean_rise]
            numbers += [errors.mce, errors.relative_mce] if several else []
        cells = ("-" if number is None else f"{100 * number:.1f}" for number in numbers)
        table.add_row(table_cell(result.name), *cells)
    return table


def shape_table(decisions: Mapping[str, Decisions]) -> Table:
    """Create a table of shape decisions, texture decisions and others of each model."""
    table = Table("run", title="cue-conflict images (shape against texture)", title_justify="left")
    for heading in ("images", "by shape", "by texture", "neither", "shape bias, %"):
        table.add_column(heading, justify="right")
    for name, made in decisions.items():
        total = len(made.decided)
        counts = (total, made.by_shape, made.by_texture, total - made.by_shape - made.by_texture)
        bias = "-" if made.shape_bias is None else f"{100 * made.shape_bias:.1f}"
        table.add_row(table_cell(name), *(f"{count:,}" for count in counts), bias)
    return table


def notes(results: Sequence[Result]) -> Iterator[str]:
    """Yield notes on how to read the tables."""
    images = results[0].clean.images
    error = 50 / math.sqrt(images)
    yield (
        f"{images:,} images: the standard error of an accuracy is at most {error:.1f} points; "
        "images are changed after resizing and cropping, as the model sees them"
    )
    for result in results:
        scores = [result.clean, *(score for of in result.scores.values() for score in of)]
        if nonfinite := sum(score.nonfinite for score in scores):
            yield (
                f"{result.name}: logits were not finite {counted(nonfinite, 'time')}, "
                f"{result.clean.nonfinite:,} of these to unchanged images; they count as wrong"
            )
    if len({result.size for result in results}) > 1:
        sizes = ", ".join(f"{r.name} {r.size[0]} x {r.size[1]}" for r in results)
        yield (
            f"the runs see images of different sizes ({sizes}), so their changed images "
            "differ, and levels in pixels mean different things"
        )
    if len(results) > 1:
        all_errors = [corruption_errors(result, results[0]) for result in results]
        if any(errors and None in (errors.mce, errors.relative_mce) for errors in all_errors):
            yield (
                f"- : under some corruption {results[0].name} errs no more than without it (or "
                "never), and the relative error divides by that; compare the increase over clean"
            )


# ---------------------------------------------------------------------------------------- the files


def record(results: Sequence[Result], decisions: Mapping[str, Decisions]) -> dict[str, Any]:
    """Return all results as JSON values."""
    several = len(results) > 1
    runs = []
    for result in results:
        errors = corruption_errors(result, results[0] if several else None)
        runs.append(
            {
                "run": result.name,
                "size": list(result.size),
                "nonfinite": result.clean.nonfinite,
                "images": result.clean.images,
                "clean": {
                    "accuracy": result.clean.accuracy,
                    "loss": result.clean.loss / result.clean.images,
                },
                "corruptions": errors and errors._asdict(),
                "tests": [
                    {
                        **{"name": test.name, "kind": test.kind, "axis": test.axis},
                        "levels": list(test.levels),
                        "accuracy": [score.accuracy for score in result.scores[test.name]],
                        "loss": [s.loss / s.images for s in result.scores[test.name]],
                        "nonfinite": [score.nonfinite for score in result.scores[test.name]],
                    }
                    for test in result.tests
                ],
            }
        )
    shapes = [
        {
            **{"run": name, "images": len(made.decided), "shape_bias": made.shape_bias},
            **{"by_shape": made.by_shape, "by_texture": made.by_texture},
        }
        for name, made in decisions.items()
    ]
    return {**({"runs": runs} if runs else {}), **({"cue_conflict": shapes} if shapes else {})}


def check_places(folder: Path, csv_file: Path) -> None:
    """Raise UserError if `write` could not write, before there is anything to write."""
    if csv_file.is_dir():
        raise UserError(f"--csv={csv_file} is a folder; name a file")
    for option, wanted in (("--output", folder), ("--csv", csv_file.parent)):
        there = next(path for path in (wanted, *wanted.parents) if path.exists())
        if not there.is_dir():
            raise UserError(f"{option}: {there} is a file; name a folder, or a path in one")
        if not os.access(there, os.W_OK):
            raise UserError(f"{option}: {there} is not writable; choose another path")


def write_scores(results: Sequence[Result], path: Path) -> None:
    """Write a line for each model, test and level; unchanged images are the test `clean`."""
    rows = []
    for result in results:
        scores = [("clean", "clean", 0, result.clean)]
        for test in result.tests:
            of_levels = zip(test.levels, result.scores[test.name], strict=True)
            scores += [(test.kind, test.name, level, score) for level, score in of_levels]
        for *which, score in scores:
            loss = score.loss / score.images
            rows.append((result.name, *which, score.images, score.right, score.accuracy, loss))
    columns = ("run", "kind", "test", "level", "images", "right", "accuracy", "loss")
    write_csv(path, columns, rows)


def write(
    folder: Path,
    content: Mapping[str, Any],
    results: Sequence[Result],
    decisions: Mapping[str, Decisions],
    images: Mapping[str, Figure],
    csv_file: Path,
) -> list[Path]:
    """Write all results to a folder, and return the files.

    Args:
        content: content of `robustness.json`.
        images: further figures to write, by name.
        csv_file: path of the CSV file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "robustness.json"]
    text = to_json(content, indent=1)
    files[0].write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
    figures: dict[str, Figure | None] = {}
    if results:
        csv_file.parent.mkdir(parents=True, exist_ok=True)
        write_scores(results, csv_file)
        files.append(csv_file)
        figures["corruptions"] = corruption_curves(results)
        figures["curves"] = curves(results)
        figures["occlusion_map"] = occlusion_maps(results)
    if decisions:
        figures["cue_conflict"] = shape_plot(decisions)
    with warnings.catch_warnings():
        # Characters missing in the font are drawn as boxes; the JSON file has the full names.
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        for name, figure in {**figures, **images}.items():
            if figure is not None:
                figure.savefig(folder / f"{name}.png", dpi=110)
                files.append(folder / f"{name}.png")
    return files
