"""Commands `autoformer-search` and `autoformer-extract`: the best subnets of a supernet."""

import os
from pathlib import Path
from typing import Annotated

import typer

from vit_jax.commands.options import AsJson, Checkpoint, Out, Raw, Run, parse_checkpoint
from vit_jax.errors import UserError
from vit_jax.text import tell, to_json

_SHOWN = 5  # subnets


def autoformer_search(
    run: Run,
    folder: Annotated[
        str, typer.Argument(help="Folder of the search; an interrupted one resumes.")
    ],
    max_parameters: Annotated[
        int, typer.Option(min=0, help="Most parameters of a subnet; 0: no limit.")
    ] = 0,
    max_macs: Annotated[
        int, typer.Option(min=0, help="Most multiply-accumulates for one image; 0: no limit.")
    ] = 0,
    evaluations: Annotated[int, typer.Option(min=1, help="Number of subnets to judge.")] = 250,
    population: Annotated[int, typer.Option(min=2, help="Subnets of a generation.")] = 50,
    parents: Annotated[
        int, typer.Option(min=1, help="Best subnets that the next generation is made from.")
    ] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the evolution.")] = 0,
    at_once: Annotated[
        int, typer.Option(min=1, help="Subnets computed together; more take more memory.")
    ] = 10,
    checkpoint: Checkpoint = "last",
    raw: Raw = False,
    as_json: AsJson = False,
) -> None:
    """Search a supernet for the best subnets under a budget, on its validation images.

    The supernet is a run of the task supernet, such as that of configs/autoformer/digits.py.
    """
    from vit_jax.compress.search.evolution import Evolution
    from vit_jax.compress.search.search import Budget, search

    def report(done, best):
        if not as_json:
            tell(f"{done:,} subnets judged, best {_in_words(best)}")

    found = search(
        run,
        folder,
        Budget(max_parameters or None, max_macs or None),
        evaluations=evaluations,
        evolution=Evolution(population, parents),
        seed=seed,
        checkpoint=parse_checkpoint(checkpoint),
        raw=raw,
        at_once=at_once,
        report=report,
    )
    if as_json:
        return print(to_json({"run": run, "subnets": [one.to_json() for one in found]}))
    if len(found) < evaluations:
        tell(f"no more than {len(found):,} subnets were found within the budget")
    for rank, one in enumerate(found[:_SHOWN], 1):
        tell(f"{rank}. {_in_words(one)}: {one.subnet}")
    tell(f"extract  python -m vit_jax autoformer-extract {folder} OUT")


def autoformer_extract(
    source: Annotated[str, typer.Argument(help="Folder of a search, or of a supernet's run.")],
    folder: Out,
    rank: Annotated[int, typer.Option(min=1, help="Place in a search, from 1, the best.")] = 1,
    width: Annotated[int, typer.Option(min=0, help="Width of a subnet of a run.")] = 0,
    heads: Annotated[str, typer.Option(help="Its heads, a number for each block: 2,3,2.")] = "",
    mlp_ratios: Annotated[str, typer.Option(help="Its MLP ratios, likewise: 1,1.5,2.")] = "",
    checkpoint: Checkpoint = "last",
    raw: Raw = False,
) -> None:
    """Write a subnet as a run folder of its own: an ordinary ViT with the weights it inherits.

    From a search it is the subnet of a rank; from a run that of --width, --heads, --mlp-ratios.
    """
    from vit_jax.compress.search.extract import extract
    from vit_jax.compress.search.search import FILE, read_search
    from vit_jax.models.supernet.space import Subnet

    if os.path.exists(Path(source).expanduser() / FILE):
        if width or heads or mlp_ratios:
            raise UserError(
                "--width, --heads and --mlp-ratios are for the run of a supernet; a search has "
                "ranks: use --rank=1"
            )
        settings, found = read_search(source)
        if rank > len(found):
            raise UserError(f"--rank={rank} is not in {source}; its ranks are 1 to {len(found)}")
        run, subnet = settings["run"], found[rank - 1].subnet
        which = {"checkpoint": settings["step"], "raw": settings["raw"]}
    else:
        run, subnet = source, Subnet(width, *_blocks(width, heads, mlp_ratios))
        which = {"checkpoint": parse_checkpoint(checkpoint), "raw": raw}
    record = extract(run, folder, subnet, **which)
    tell(f"{folder} holds {subnet}; {record.origin}")
    tell(f"evaluate  python -m vit_jax evaluate {folder}")
    tell(f"fine-tune python -m vit_jax train --config=finetune --config.init_from={folder}")


def _blocks(width: int, heads: str, ratios: str) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Parse heads and MLP ratios of a subnet, of as many blocks."""
    try:
        parsed = tuple(map(int, heads.split(","))), tuple(map(float, ratios.split(",")))
    except ValueError:
        parsed = (), ()
    counts = {*map(len, parsed)}
    if width < 1 or counts == {0} or len(counts) > 1 or min(min(each) for each in parsed) <= 0:
        raise UserError(
            f"--width={width} --heads={heads} --mlp-ratios={ratios} is no subnet; name a width, "
            "and as many heads as MLP ratios, such as --width=48 --heads=2,3 --mlp-ratios=1,1.5"
        )
    return parsed


def _in_words(judged) -> str:
    return (
        f"{100 * judged.accuracy:.2f} % ({judged.correct:,} of {judged.images:,}), "
        f"{judged.parameters:,} parameters, {judged.macs:,} MACs"
    )
