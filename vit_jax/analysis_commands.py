"""The commands that look inside a trained model: `report` and `attention`.

Each imports what it needs itself, so that help and mistakes do not wait for JAX.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from vit_jax.command_options import Checkpoint, Raw, Run, parse_checkpoint, parse_layer
from vit_jax.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def report(run: Run) -> None:
    """Write the report of a run anew: settings, results, curves and costs on one page."""
    from vit_jax.analysis.report import write_report
    from vit_jax.runs import RunFolder

    print(f"The report is {write_report(RunFolder(run))}; open it in a browser.")


def attention(
    run: Run,
    picture: Annotated[str, typer.Argument(help="Picture file.")],
    layer: Annotated[str, typer.Option(help="last, or a number from 0.")] = "last",
    head: Annotated[
        str, typer.Option(help="mean, all, a number from 0, rollout or relevance.")
    ] = "mean",
    output: Annotated[str, typer.Option("--output", "-o", help="File.")] = "attention.png",
    checkpoint: Checkpoint = "last",
    raw: Raw = False,
) -> None:
    """Draw where a model looks in a picture: what it sees, the map, and both together."""
    from vit_jax.analysis.overlays import draw_attention
    from vit_jax.deploy import load

    number = parse_layer(layer)
    figure = draw_attention(load(run, parse_checkpoint(checkpoint), raw=raw), picture, number, head)
    _save(figure, output)
    print(f"The picture is {output}.")


def _save(figure: "Figure", output: str) -> None:
    """Writes a figure; raises UserError for an ending that stands for no kind of picture."""
    try:
        figure.savefig(output, dpi=120)
    except ValueError as error:
        raise UserError(f"--output={output} cannot be written: {error}") from error
