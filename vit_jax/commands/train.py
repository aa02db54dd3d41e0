"""Command `train`, also run by `train.py`."""

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vit_jax.commands.output import print_keys, print_last_screen
from vit_jax.errors import (
    EXIT_INTERNAL_FAULT,
    EXIT_STOPPED,
    UserError,
    explained,
    nearest,
    shown,
)
from vit_jax.startup import STOPPED, ignore_signals, unwind_on_signals
from vit_jax.text import tell

if TYPE_CHECKING:
    from ml_collections import ConfigDict

    from vit_jax.training.callbacks import Observer
    from vit_jax.training.setup.experiment import Experiment


def train(
    context: typer.Context,
    config: Annotated[
        str, typer.Option(help="Name of a config (see the command configs), or a Python file.")
    ] = "",
    workdir: Annotated[
        str, typer.Option(help="Run folder; default: runs/NAME of the config.")
    ] = "",
    coordinator: Annotated[
        str, typer.Option(help="Multi-process training: HOST:PORT of process 0.")
    ] = "",
    processes: Annotated[int | None, typer.Option(help="Number of processes.")] = None,
    process: Annotated[int | None, typer.Option(help="Index of this process, from 0.")] = None,
    timeout: Annotated[
        int, typer.Option(help="Timeout in seconds for contact between processes.")
    ] = 100,
    keys: Annotated[
        bool,
        typer.Option("--keys", help="List all --config.KEY options, or those matching a word."),
    ] = False,
) -> None:
    """Train a model, or resume a run. --config.KEY=VALUE changes a key of the config."""
    from vit_jax.config import load_config
    from vit_jax.config.files import find_config, list_configs

    if keys:
        return print_keys(context.args)
    overrides = parse_overrides(context)
    if not config:
        names = ", ".join(list_configs())
        raise UserError(
            f"--config is missing; use --config=PATH, or --config=NAME with one of {names}"
        )
    settings = load_config(config, overrides)
    folder = Path(workdir or Path("runs") / find_config(config)[0].stem)
    run_training(settings, folder, coordinator, processes, process, timeout)


def run_training(
    settings: "ConfigDict",
    folder: Path,
    coordinator: str = "",
    processes: int | None = None,
    process: int | None = None,
    timeout: int = 100,
) -> None:
    """Train a configuration in a run folder, and print its result; options as of `train`."""
    from vit_jax.training import fit
    from vit_jax.training.compile_cache import use_compile_cache
    from vit_jax.training.distributed import processes as distributed

    use_compile_cache(settings.compile_cache, folder)
    unwind_on_signals()
    try:
        distributed.initialize(coordinator, processes, process, timeout=timeout)
        outcome = fit(settings, folder, draw=_draw_all, watch=_watch)
    except (Exception, KeyboardInterrupt) as error:
        if not distributed.is_joined():
            raise
        if isinstance(error, KeyboardInterrupt):  # nothing to save yet
            print(STOPPED, file=sys.stderr)
            distributed.leave(EXIT_STOPPED)
        code = explained(error)
        if code == EXIT_INTERNAL_FAULT:
            traceback.print_exc()
            print(
                "error: if this is a connection error, another process has ended: see its output "
                "for the cause. Run the same commands again to resume from the last checkpoint",
                file=sys.stderr,
            )
        distributed.leave(code)
    ignore_signals()
    primary = distributed.is_primary()
    if outcome.result is None:
        fresh = " (without --config.resume=never)" if settings.resume == "never" else ""
        if primary:
            tell(
                f"Stopped at step {outcome.step} of {outcome.total_steps}; everything is saved in "
                f"{folder}. Run the same command again to resume{fresh}."
            )
        raise typer.Exit(EXIT_STOPPED)
    if not primary:
        return
    if not outcome.trained:
        tell(f"The run in {folder} is finished; nothing was trained.")
    print_last_screen(outcome.run, outcome.result)


def _draw_all(*arguments: Any) -> None:
    """Draw the figures and the report; imports Matplotlib only at the end."""
    from vit_jax.analysis.report.run_report import draw_all

    draw_all(*arguments)


def _watch(experiment: "Experiment") -> "Observer":
    """Create the observer of `log.diagnostics`."""
    from vit_jax.analysis.monitoring.monitor import Monitor

    return Monitor(experiment)


def parse_overrides(context: typer.Context) -> list[tuple[str, str]]:
    """Return pairs of key and text of `--config.KEY=VALUE` or `--config.KEY VALUE`.

    Raises UserError for what is neither that nor an option of the command.
    """
    command = context.command
    options = [flag for one in command.params for flag in one.opts if flag.startswith("--")]
    pairs, rest = [], list(context.args)
    while rest:
        flag, equals, text = rest.pop(0).partition("=")
        if not flag.startswith("--config."):
            raise UserError(
                f"{command.name} has no argument {shown(flag)}{_nearest_flag(flag, options)}"
            )
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise UserError(f"{flag} needs a value: {flag}=VALUE")
            text = rest.pop(0)
        pairs.append((flag.removeprefix("--config."), text))
    return pairs


def _nearest_flag(flag: str, options: Sequence[str]) -> str:
    """Return a suggestion: an option, or a key without its `--config.`."""
    from vit_jax.config.aliases import suggest_key

    flags = [*options, "--help"]
    if not flag.startswith("-"):
        return f"; use one of {', '.join(flags)} and --config.KEY=VALUE"
    if hint := nearest(flag, flags, cutoff=0.75):
        return hint
    return suggest_key(flag.lstrip("-")).replace("did you mean '", "did you mean '--config.")
