"""Output of commands: the summary after training, metrics in words, tables."""

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from vit_jax.errors import UserError, nearest, shown
from vit_jax.text import printable, table_cell, tell

_WIDTH_OF_PIPES = 160
_WIDEST = 10_000
_MOST_CLASSES = 1000  # rows in the table of classes
_WEAKEST = 30

if TYPE_CHECKING:  # printing the keys does not need JAX
    from vit_jax.evaluation.metrics import ClassRow
    from vit_jax.runs import RunDir


def print_last_screen(run: "RunDir", result: Mapping[str, Any]) -> None:
    """Print the paths of a finished run and the next commands."""
    figures = ", ".join(sorted(path.name for path in run.figures.glob("*.png")))
    metric, value = in_words(result)
    classifies = run.read_model().task == "classification"
    rows = {
        f"test {metric}": value,
        "checkpoints": f"{run.checkpoints} (steps {', '.join(map(str, run.steps()))})",
        "metrics": f"{run.metrics_file}, and for TensorBoard {run.tensorboard}",
        "figures": f"{run.figures} ({figures})",
        "report": f"{run.report_file}, all of this on one page",
        "classify": f"python -m vit_jax predict {shlex.quote(str(run.path))} IMAGE.png",
        "evaluate": f"python -m vit_jax evaluate {shlex.quote(str(run.path))}",
        "in Python": f'import vit_jax; classifier = vit_jax.load("{run.path}")',
    }
    if not classifies:
        from vit_jax.inference.loading import writes_files

        del rows["in Python"]
        folder = " --output=FOLDER"
        rows["predict"] = rows.pop("classify").replace(" IMAGE.png", f" IMAGE.png{folder}")
        if not writes_files(run.path):
            del rows["predict"]
    for name, value in rows.items():
        tell(f"{name:>14}  {value}")


def in_words(metrics: Mapping[str, Any]) -> tuple[str, str]:
    """Return name and value of the main metric, with the number of examples."""
    examples = f"{metrics['examples']:,}"
    if "mean_average_precision" in metrics:
        mean = f"{100 * metrics['mean_average_precision']:.2f} %"
        return "mAP", f"{mean} (mean average precision on {examples} images)"
    if "accuracy" not in metrics:
        return _other_in_words(metrics)
    right = round(metrics["accuracy"] * metrics["examples"])
    return "accuracy", f"{100 * metrics['accuracy']:.2f} % ({right:,} of {examples})"


def _other_in_words(metrics: Mapping[str, Any]) -> tuple[str, str]:
    """Return the metrics of a task that is no classification: the first's name, and all values."""
    from vit_jax.evaluation.metrics import metric_names, shown_name, shown_value

    first, *names = [*(["loss"] if "loss" in metrics else []), *metric_names([metrics])]
    others = [f"{shown_name(name)} {shown_value(name, metrics[name])}" for name in names]
    images = f"on {metrics.get('examples', 0):,} images"
    return shown_name(first), ", ".join([shown_value(first, metrics[first]), *others, images])


def print_keys(words: Sequence[str] = ()) -> None:
    """Print the configuration keys with their defaults, meanings and valid values.

    If the output is not a terminal, each key is on one line, so that it can be searched.

    Args:
        words: only keys that have one of these in their name, meaning or valid values, or of which
            one is the short name.

    Raises:
        UserError: no key matches.
    """
    from vit_jax.config.aliases import find_keys

    found = find_keys(words)
    if not found:
        raise UserError(f"no key contains {' or '.join(map(shown, words))}; --keys lists all")
    rows = [
        (f"--config.{path}", repr(key.default), key.meaning, key.allowed.describe())
        for path, key in found.items()
    ]
    print_rows(("key", "default", "meaning", "valid values"), rows)


def print_per_class(rows: Sequence["ClassRow"]) -> None:
    """Print recall, precision and other metrics of every class, with the number of its examples.

    Rows are dataclasses: the name, a count, and shares.
    """
    if not rows:
        return
    _, count, *headings = dataclasses.asdict(rows[0])
    headings = [name for name in headings if any(getattr(row, name) is not None for row in rows)]
    titles = ("class", count, *(heading.replace("_", " ") for heading in headings))
    if len(rows) > _MOST_CLASSES and Console().is_terminal:
        there = sorted((row for row in rows if getattr(row, count)), key=lambda row: row.recall)
        tell(f"the {_WEAKEST} of {len(rows):,} classes with the lowest recall; --json has all")
        rows = there[:_WEAKEST]
    if len(rows) > _MOST_CLASSES:  # plain lines, since rich takes minutes for so many rows
        cells = [_class_cells(row, count, headings) for row in rows]
        return print_rows(titles, cells, headed=True)
    table = Table(titles[0])
    for title in titles[1:]:
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(*map(table_cell, _class_cells(row, count, headings)))
    print_table(table)


def _class_cells(row: "ClassRow", count: str, headings: Sequence[str]) -> list[str]:
    shares = [getattr(row, heading) for heading in headings]
    cells = ["-" if share is None else f"{100 * share:.2f} %" for share in shares]
    return [printable(row.name), f"{getattr(row, count):,}", *cells]


def print_published(patterns: Sequence[str], as_json: bool = False) -> None:
    """Print the published checkpoints that match a shell pattern, with full addresses."""
    from vit_jax.weights.zoo import PUBLISHED, list_published

    names: dict[str, None] = {}
    for pattern in patterns:
        found = list_published(pattern)
        if not found:
            hint = nearest(pattern.strip("*"), PUBLISHED) or "; see models --pretrained"
            raise UserError(f"there is no published checkpoint {pattern!r}{hint}")
        names |= dict.fromkeys(found)
    checkpoints = [PUBLISHED[name] for name in names]
    if as_json:
        rows = [
            dataclasses.asdict(one) | {"image_size": one.image_size, "fields": dict(one.fields)}
            for one in checkpoints
        ]
        return print(json.dumps(rows))
    headings = ("parameters", "pixels", "ImageNet-1k top-1", "measured", "where", "reported by")
    print_rows(
        ("checkpoint", *headings),
        [
            (
                one.name,
                f"{one.parameters:,}",
                str(one.image_size),
                "" if one.top1 is None else f"{one.top1} %",
                one.measured,
                one.where,
                one.source,
            )
            for one in checkpoints
        ],
        whole=("where",),
    )


def print_rows(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    whole: Sequence[str] = (),
    *,
    headed: bool = False,
) -> None:
    """Print a table on a terminal, else a line per row with two spaces between full cells.

    Args:
        headings: of the columns.
        rows: their cells.
        whole: headings of columns that, like the first, are never wrapped.
        headed: whether lines have the headings too, as the table has.
    """
    if not Console().is_terminal:
        rows = [headings, *rows] if headed else rows
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            tell("  ".join(cells).rstrip())
        return
    table = Table()
    for heading in headings:
        kept = heading in whole
        table.add_column(heading, no_wrap=kept, overflow="ignore" if kept else "fold")
    for row in rows:
        table.add_row(*map(table_cell, row))
    print_table(table)


def print_table(table: Table) -> None:
    """Print a table whose first column is never cut: names are searched for and copied.

    If the output is not a terminal, no column is shortened.
    """
    if table.columns:
        table.columns[0].no_wrap, table.columns[0].overflow = True, "ignore"
    for column in table.columns[1:]:
        if column.overflow == "ellipsis":
            column.overflow = "fold"
    console, needed = Console(), Console(width=_WIDEST).measure(table)
    # A terminal wraps long lines; a shortened name would be lost.
    least = needed.minimum if console.is_terminal else max(_WIDTH_OF_PIPES, needed.maximum)
    console.print(table) if least <= console.width else Console(width=least).print(table)
