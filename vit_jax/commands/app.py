"""Command-line application with all commands; `vit_jax/cli.py` runs it."""

from typing import Annotated

import typer

from vit_jax import __version__
from vit_jax.commands.configs import configs
from vit_jax.commands.data import data
from vit_jax.commands.deploy.benchmark import benchmark
from vit_jax.commands.deploy.compress import distill, prune, quantize, soup
from vit_jax.commands.deploy.export import export
from vit_jax.commands.deploy.serve import serve
from vit_jax.commands.evaluate import calibrate, convert, evaluate
from vit_jax.commands.inspect import attention, inspect, probe, report
from vit_jax.commands.language import embed, search, zero_shot
from vit_jax.commands.models import models, summary
from vit_jax.commands.predict import predict
from vit_jax.commands.robustness import robustness
from vit_jax.commands.studies.autoformer import autoformer_extract, autoformer_search
from vit_jax.commands.studies.compare import advise, compare
from vit_jax.commands.studies.sweep import folds, sweep
from vit_jax.commands.train import train

app = typer.Typer(
    help="Vision Transformers in JAX: train, evaluate, predict, and inspect models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_TAKES_KEYS = {"allow_extra_args": True, "ignore_unknown_options": True}  # --config.KEY=VALUE


def _print_version(asked: bool) -> None:
    if asked:
        print(f"vit_jax {__version__}")
        raise typer.Exit()


@app.callback()
def _of_all_commands(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


app.command(context_settings=_TAKES_KEYS)(train)
app.command()(configs)
for _command in (
    predict,
    evaluate,
    data,
    convert,
    export,
    report,
    attention,
    inspect,
    probe,
    robustness,
):
    app.command()(_command)
app.command("zero-shot")(zero_shot)
for _command in (search, embed, serve, benchmark):
    app.command()(_command)
for _command in (advise, compare, calibrate):
    app.command()(_command)
for _command in (quantize, prune, soup):
    app.command()(_command)
app.command(context_settings=_TAKES_KEYS)(distill)
for _command in (sweep, folds):
    app.command(context_settings=_TAKES_KEYS)(_command)
app.command("autoformer-search")(autoformer_search)
app.command("autoformer-extract")(autoformer_extract)
app.command()(models)
app.command(context_settings=_TAKES_KEYS)(summary)
