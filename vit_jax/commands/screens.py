"""What commands print: the last screen of a training, metrics in words, tables."""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vit_jax.errors import UserError, nearest
from vit_jax.keys import KEYS

if TYPE_CHECKING:  # a list of keys is printed without JAX
    from vit_jax.runs import RunFolder
    from vit_jax.training.metrics import ClassRow


def print_last_screen(run: "RunFolder", result: Mapping[str, Any]) -> None:
    """Where everything is, and what to type next."""
    figures = ", ".join(sorted(path.name for path in run.figures.glob("*.png")))
    metric, value = in_words(result)
    rows = {
        f"test {metric}": value,
        "checkpoints": f"{run.checkpoints} (steps {', '.join(map(str, run.steps()))})",
        "metrics": f"{run.metrics_file}, and for TensorBoard {run.tensorboard}",
        "figures": f"{run.figures} ({figures})",
        "report": f"{run.report_file}, all of this on one page",
        "classify": f"python -m vit_jax predict {shlex.quote(str(run.path))} PICTURE.png",
        "evaluate": f"python -m vit_jax evaluate {shlex.quote(str(run.path))}",
        "in Python": f'import vit_jax; classifier = vit_jax.load("{run.path}")',
    }
    for name, value in rows.items():
        print(f"{name:>14}  {value}")


def in_words(metrics: Mapping[str, Any]) -> tuple[str, str]:
    """Name and value of the metric that counts, with what it was counted on."""
    examples = f"{metrics['examples']:,}"
    if "accuracy" not in metrics:
        mean = f"{100 * metrics['mean_average_precision']:.2f} %"
        return "mAP", f"{mean} (mean average precision on {examples} pictures)"
    right = round(metrics["accuracy"] * metrics["examples"])
    return "accuracy", f"{100 * metrics['accuracy']:.2f} % ({right:,} of {examples})"


def print_keys() -> None:
    """Every key of the configuration, with its default and what it may be."""
    table = Table("key", "default", "meaning", "legal values")
    for path, key in KEYS.items():
        table.add_row(f"--config.{path}", repr(key.default), key.meaning, key.legal.describe())
    Console().print(table)


def print_per_class(rows: Sequence["ClassRow"]) -> None:
    """Recall, precision and the like of every class; nothing where there are no rows."""
    if not rows:
        return
    headings = [name for name in dataclasses.asdict(rows[0]) if name not in ("name", "examples")]
    headings = [name for name in headings if any(getattr(row, name) is not None for row in rows)]
    table = Table("class")
    for heading in ("examples", *headings):
        table.add_column(heading.replace("_", " "), justify="right")
    for row in rows:
        shares = [getattr(row, heading) for heading in headings]
        cells = ["-" if share is None else f"{100 * share:.2f} %" for share in shares]
        table.add_row(escape(row.name), f"{row.examples:,}", *cells)
    print_table(table)


def print_published(pattern: str) -> None:
    """The published checkpoints whose names match a shell pattern."""
    from vit_jax.weights.published import PUBLISHED, list_published

    names = list_published(pattern)
    if not names:
        hint = nearest(pattern.strip("*"), PUBLISHED) or "; see models --pretrained"
        raise UserError(f"no published checkpoint is called {pattern!r}{hint}")
    table = Table("checkpoint")
    for heading in ("parameters", "pixels", "ImageNet-1k top-1"):
        table.add_column(heading, justify="right")
    for heading in ("measured", "reported by", "where"):
        table.add_column(heading, overflow="fold")
    for name in names:
        one = PUBLISHED[name]
        accuracy = "" if one.top1 is None else f"{one.top1} %"
        numbers = (f"{one.parameters:,}", str(one.image_size), accuracy)
        table.add_row(name, *numbers, one.measured, one.source, one.where)
    print_table(table)


def print_table(table: Table) -> None:
    """A table that is not squeezed where the output is no terminal."""
    console = Console()
    console.print(table) if console.is_terminal else Console(width=160).print(table)
