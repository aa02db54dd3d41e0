"""Commands `quantize`, `prune`, `soup` and `distill`: smaller models, and averages."""

from pathlib import Path
from typing import Annotated

import typer

from vit_jax.commands.options import Checkpoint, Out, Raw, Run, parse_checkpoint
from vit_jax.commands.output import print_rows
from vit_jax.commands.train import parse_overrides, run_training
from vit_jax.errors import UserError
from vit_jax.text import tell


def quantize(
    run: Run,
    folder: Out,
    bits: Annotated[int, typer.Option(help="Bits of the kernels: 8 or 4.")] = 8,
    activations: Annotated[
        str, typer.Option(help="float; or int8: round the tokens before linear layers as well.")
    ] = "float",
    skip: Annotated[
        str,
        typer.Option(help="Roles of kernels that stay float32, such as qkv,head; none: no role."),
    ] = "patch_embedding",
    checkpoint: Checkpoint = "last",
    raw: Raw = False,
) -> None:
    """Quantize the kernels of a trained model to 8 or 4 bits."""
    from vit_jax.compress.quantize import quantize as write_quantized

    sizes = write_quantized(
        run,
        folder,
        bits,
        activations=activations,
        skip=[name for name in skip.replace(" ", "").split(",") if name not in ("", "none")],
        checkpoint=parse_checkpoint(checkpoint),
        raw=raw,
    )
    share = f"{100 * sizes.after / sizes.before:.1f} %"
    tell(
        f"{folder} has {sizes.kernels:,} kernels of {bits} bits: {sizes.before:,} bytes became "
        f"{sizes.after:,} ({share})"
    )
    tell(f"evaluate  python -m vit_jax evaluate {folder}")


def prune(
    run: Run,
    folder: Out,
    heads: Annotated[float, typer.Option(help="Share of the attention heads to remove.")] = 0.0,
    mlp: Annotated[float, typer.Option(help="Share of the MLPs' hidden units to remove.")] = 0.0,
    by: Annotated[
        str, typer.Option(help="Importance: taylor (by the loss) or magnitude.")
    ] = "taylor",
    images: Annotated[int, typer.Option(min=1, help="Training images for taylor.")] = 512,
    evenly: Annotated[
        bool, typer.Option("--evenly", help="Remove the same share of every block.")
    ] = False,
    checkpoint: Checkpoint = "last",
    raw: Raw = False,
) -> None:
    """Remove the least important heads and hidden units of a trained ViT."""
    from vit_jax.compress.prune import prune as write_pruned

    pruned = write_pruned(
        run,
        folder,
        heads=heads,
        mlp=mlp,
        by=by,
        images=images,
        evenly=evenly,
        checkpoint=parse_checkpoint(checkpoint),
        raw=raw,
    )
    rows = [
        (f"block {number}", str(left), str(width))
        for number, (left, width) in enumerate(zip(pruned.heads, pruned.mlp_width, strict=True))
    ]
    print_rows(("left in", "heads", "hidden units"), rows, headed=True)
    for name in ("parameters", "macs"):
        before, after = getattr(pruned.before, name), getattr(pruned.after, name)
        word = name if name == "parameters" else "multiply-adds"
        tell(f"{word}: {before:,} became {after:,} ({100 * after / before:.1f} %)")
    tell(f"evaluate  python -m vit_jax evaluate {folder}")
    tell(f"fine-tune python -m vit_jax train --config=CONFIG --config.init_from={folder}")


def soup(
    folder: Out,
    runs: Annotated[list[str], typer.Argument(help="Run folders of one model.")],
    greedy: Annotated[
        bool,
        typer.Option("--greedy", help="Keep a checkpoint only if validation data say so."),
    ] = False,
    steps: Annotated[
        str,
        typer.Option(help="all, last, or steps such as 60,90; default: all of one run, else last."),
    ] = "",
) -> None:
    """Average checkpoints of one or several runs into a model ("soup")."""
    from vit_jax.compress.soup import soup as write_soup

    taken = write_soup(folder, runs, greedy=greedy, steps=_parse_steps(steps), report=tell)
    names = "; ".join(map(str, taken))
    if len(taken) == 1:
        tell(f"{folder} holds one checkpoint, which no other one makes better: {names}")
    else:
        tell(f"{folder} holds the average of {len(taken)}: {names}")
    tell(f"evaluate  python -m vit_jax evaluate {folder}")


def distill(
    context: typer.Context,
    run: Run,
    folder: Annotated[str, typer.Argument(help="Run folder of the student.")],
    to: Annotated[str, typer.Option(help="Name of the student's model; see models.")],
) -> None:
    """Train a model of another size with a run as its teacher, on the data of that run.

    --config.KEY=VALUE changes a key of the run's configuration. The same command resumes.
    """
    from vit_jax.compress.distill import student_config

    overrides = parse_overrides(context)
    run_training(student_config(run, to, overrides), Path(folder))


def _parse_steps(text: str) -> str | list[int]:
    """Parse `all`, `last`, or numbers of steps with commas."""
    if text in ("", "all", "last"):
        return text
    numbers = text.replace(" ", "").split(",")
    if not all(number.isdecimal() for number in numbers):
        raise UserError(f"--steps={text} is invalid; use all, last, or steps such as 60,90")
    return [int(number) for number in numbers]
