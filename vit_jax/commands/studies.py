"""Commands on several runs: `compare`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from vit_jax.commands.options import AsJson, check_file
from vit_jax.commands.output import print_table
from vit_jax.text import table_cell, tell, to_json


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
