"""Command `benchmark`: the latency of models, by batch size and by what computes them."""

import csv
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from vit_jax.commands.options import AsJson, Checkpoint, check_file, parse_checkpoint, parse_sides
from vit_jax.commands.output import print_table
from vit_jax.errors import UserError, writing
from vit_jax.text import counted, table_cell, tell, to_json

if TYPE_CHECKING:
    from vit_jax.analysis.latency.tables import Row


def benchmark(
    models: Annotated[
        list[str],
        typer.Argument(help="Run folders, or names of models such as ViT-S/16.", metavar="MODEL"),
    ],
    batch: Annotated[str, typer.Option(help="Numbers of images at once, such as 1,8,32.")] = "1",
    image_size: Annotated[
        str, typer.Option(help="HEIGHTxWIDTH in pixels of models by name; default: their own.")
    ] = "",
    ways: Annotated[
        str,
        typer.Option(
            "--with",
            help="What computes them: jit, bfloat16, stablehlo, onnxruntime, onnxruntime-int8, "
            "openvino, int8, int8xint8, int4, tome; several with commas.",
        ),
    ] = "jit",
    seconds: Annotated[float, typer.Option(min=0.001, help="Seconds of each measurement.")] = 2.0,
    checkpoint: Checkpoint = "last",
    as_csv: Annotated[str, typer.Option("--csv", help="CSV file for the rows.")] = "",
    as_json: AsJson = False,
) -> None:
    """Measure latency, memory and cost of models side by side."""
    batches, size = _batches(batch), parse_sides("image-size", image_size)
    if as_csv:
        check_file("csv", as_csv)
    asked = [way.strip() for way in ways.split(",") if way.strip()]
    from vit_jax.analysis.latency.contenders import WAYS, check_way
    from vit_jax.analysis.latency.tables import machine, measure
    from vit_jax.progress import progress_bars

    if not asked:
        raise UserError(f"--with is empty; use one or several of {', '.join(WAYS)}")
    for way in asked:
        check_way(way)
    with progress_bars("models") as show:
        rows = measure(
            models,
            asked,
            batches,
            image_size=size,
            checkpoint=parse_checkpoint(checkpoint),
            seconds=seconds,
            show=show,
        )
    if as_csv:
        _write(as_csv, rows)
    where = machine()
    if as_json:
        return print(to_json({**where, "rows": [row.to_json() for row in rows]}))
    print_table(_table(rows))
    tell(
        f"On {where['device']}, {counted(where['cores'], 'core')}, JAX {where['jax']}. Speed is "
        "relative to the first row of the same batch; all take turns. Memory: weights, inputs, "
        "outputs and temporaries of the compiled program."
    )


def _batches(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise UserError(f"--batch={text} is invalid; use whole numbers from 1, such as 1,8,32")
    return list(dict.fromkeys(map(int, parts)))


def _table(rows: list["Row"]) -> Table:
    table = Table("model")
    table.add_column("with")
    headings = ("image", "batch", "p50 ms", "p99 ms", "images/s", "speed", "memory MB")
    for heading in (*headings, "stored MB", "parameters", "MACs"):
        table.add_column(heading, justify="right")
    for row in rows:
        memory = None if row.memory_bytes is None else f"{row.memory_bytes / 1e6:,.1f}"
        table.add_row(
            table_cell(row.model),
            row.way,
            "x".join(map(str, row.image_size)),
            f"{row.batch:,}",
            f"{row.p50_ms:,.2f}",
            f"{row.p99_ms:,.2f}",
            f"{row.images_per_second:,.1f}",
            f"{row.speed_up:.2f}",
            memory or "-",
            f"{row.stored_bytes / 1e6:,.1f}",
            f"{row.parameters:,}",
            f"{row.macs:,}",
        )
    return table


def _write(path: str, rows: list["Row"]) -> None:
    with writing(path), open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        fields = [row.to_json() for row in rows]
        writer.writerow(fields[0])
        for row in fields:
            row["image_size"] = "x".join(map(str, row["image_size"]))
            writer.writerow(row.values())
