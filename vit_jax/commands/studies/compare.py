"""Commands before and after runs: `advise` and `compare`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from vit_jax.commands.options import AsJson, check_file
from vit_jax.commands.output import print_table
from vit_jax.errors import UserError, shown
from vit_jax.text import counted, table_cell, tell, to_json


def compare(
    runs: Annotated[list[str], typer.Argument(help="Run folders, or folders of runs.")],
    metric: Annotated[
        str, typer.Option(help="Metric of the results, such as loss; default: the task's.")
    ] = "",
    output: Annotated[str, typer.Option(help="Page to write: table, curves and runs.")] = "",
    as_json: AsJson = False,
) -> None:
    """Compare finished runs: what differs in their settings, and what came of it."""
    if output:
        check_file("output", output)
    from vit_jax.studies import comparison_page
    from vit_jax.studies.comparison import compare as compare_runs
    from vit_jax.studies.finished import read_runs

    found = compare_runs(read_runs(runs), metric)
    if output:
        comparison_page.write_page(found, Path(output))
    if as_json:
        return print(to_json(found.to_dict()))
    table = Table(*comparison_page.headings(found))
    for row in comparison_page.rows(found):
        table.add_row(*map(table_cell, row))
    print_table(table)
    if not found.same_images:
        tell(f"warning: {comparison_page.DIFFERENT_IMAGES}", error=True)
    if output:
        tell(f"{output} has the table and the curves.")


def advise(
    dataset: Annotated[
        str, typer.Argument(help="Dataset, such as digits, folder:PATH or tfds:NAME.")
    ],
    as_json: AsJson = False,
) -> None:
    """Propose configurations for a dataset and this machine, with reasons, time and memory."""
    from vit_jax.commands.data_report import data_keys, open_splits, train_with
    from vit_jax.data.inspect.report import inspect_dataset
    from vit_jax.studies.advice import effort, proposals
    from vit_jax.studies.machine import this_machine

    report = inspect_dataset(open_splits(dataset, "all", {}))
    keys = data_keys(dataset, report)
    if keys is None:
        raise UserError(
            f"{dataset} has nothing to train on; see python -m vit_jax data {shown(dataset)}"
        )
    machine = this_machine()
    rows = []
    for number, proposal in enumerate(proposals(report, machine), start=1):
        takes = effort(proposal, report, machine)
        command = train_with(proposal.config, dataset, {**keys, **proposal.keys}, f"_{number}")
        row = {"title": proposal.title, "reasons": proposal.reasons, "command": command}
        rows.append({**row, **takes._asdict()})
    if as_json:
        return print(to_json({"dataset": dataset, "machine": machine._asdict(), "advice": rows}))
    train = report.splits["train"]
    classes = f" in {counted(len(report.class_names), 'class', 'classes')}" * report.labelled
    tell(f"{train.examples:,} training images{classes}; {machine.describe()}")
    for number, row in enumerate(rows, start=1):
        tell(f"\n{number}. {row['title']}")
        for reason in row["reasons"]:
            tell(f"   because {reason}")
        low, high = map(_in_words, row["hours"])
        room = f"{row['bytes'] / 2**30:.1f} GiB of memory"
        if machine.room and row["bytes"] > machine.room:
            room += ", more than there is: use a smaller --config.batch_size, or remat"
        tell(f"   {row['parameters']:,} parameters, {row['macs'] / 1e6:,.1f} MMACs an image")
        tell(f"   {row['steps']:,} steps, {low} to {high}, {room}")
        tell(f"   {row['command']}")


def _in_words(hours: float) -> str:
    if hours < 1:
        return counted(max(1, round(60 * hours)), "minute")
    return f"{hours:,.1f} hours" if hours < 48 else f"{hours / 24:,.1f} days"
