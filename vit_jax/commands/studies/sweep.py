"""Commands that train one configuration many times: `sweep` and `folds`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from vit_jax.commands.options import AsJson, check_file
from vit_jax.commands.output import print_table
from vit_jax.errors import EXIT_STOPPED, UserError, nearest
from vit_jax.text import counted, table_cell, tell, to_json

_OVER = "KEY=VALUE,VALUE,... or KEY=LOW..HIGH[:log]; once for each key."


def sweep(
    context: typer.Context,
    config: Annotated[
        str, typer.Option(help="Name of a config (see the command configs), or a Python file.")
    ] = "",
    over: Annotated[list[str] | None, typer.Option(help=_OVER)] = None,
    workdir: Annotated[
        str, typer.Option(help="Folder of the sweep; default: sweeps/NAME of the config.")
    ] = "",
    sampler: Annotated[
        str, typer.Option(help="grid, random, or Optuna's tpe, cmaes, gp or qmc.")
    ] = "grid",
    trials: Annotated[
        int, typer.Option(min=0, help="Settings to draw; each is trained with every seed.")
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampler.")] = 0,
    pruner: Annotated[
        str, typer.Option(help="median: stop trials worse than the median of finished ones.")
    ] = "none",
    jobs: Annotated[int, typer.Option(min=1, help="Trials to train at once.")] = 1,
    metric: Annotated[
        str, typer.Option(help="Metric that chooses, such as loss; default: the task's.")
    ] = "",
    commands: Annotated[
        str, typer.Option(help="File for the commands of all trials, one a line; runs nothing.")
    ] = "",
    retry: Annotated[bool, typer.Option("--retry", help="Train failed trials again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a configuration with many settings. --config.KEY=VALUE changes a key of all trials.

    The settings are compared by validation images. The winner is tested once. The same command
    resumes.
    """
    from vit_jax.commands.train import parse_overrides

    overrides = tuple(parse_overrides(context))
    _check_choices(sampler, pruner)
    if not config:
        raise UserError("--config is missing; use --config=NAME, see python -m vit_jax configs")
    if commands:
        check_file("commands", commands)

    import jax

    jax.config.update("jax_platforms", "cpu")  # the devices are for the trials
    from vit_jax.config.files import find_config
    from vit_jax.studies.sweep.plan import Plan, open_plan
    from vit_jax.studies.sweep.running import Sweep, in_short

    folder = Path(workdir or Path("sweeps") / find_config(config)[0].stem).expanduser()
    plan = Plan(config, overrides, tuple(over or ()), sampler, seed, trials, pruner)
    if plan.asks:
        if commands:
            raise UserError(
                f"--commands needs settings that are known before; --sampler={sampler} chooses "
                "them by results: use --sampler=grid or random"
            )
        from vit_jax.studies.sweep.asking import import_optuna

        import_optuna(sampler)
    plan = open_plan(plan, folder, metric)
    if plan.splits.told:
        tell(plan.splits.told, error=True)
    found = Sweep(plan, folder, lambda text: tell(text, error=True))
    if commands:
        return _write_commands(found, Path(commands))
    tell(f"{folder}: {in_short(found.trials()) if found.trials() else 'begins'}", error=True)
    done = found.train(jobs, retry)
    _report(found, done, as_json)
    if not done:
        tell(f"Stopped; run the same command again to go on in {folder}.", error=True)
        raise typer.Exit(EXIT_STOPPED)


def folds(
    context: typer.Context,
    config: Annotated[
        str, typer.Option(help="Name of a config (see the command configs), or a Python file.")
    ] = "",
    workdir: Annotated[
        str, typer.Option(help="Folder of the runs; default: folds/NAME of the config.")
    ] = "",
    count: Annotated[int, typer.Option("--folds", help="Number of folds.")] = 5,
    group_column: Annotated[
        str, typer.Option(help="Column of a table whose groups, such as patients, stay together.")
    ] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Folds to train at once.")] = 1,
    metric: Annotated[str, typer.Option(help="Metric to print; default: the task's.")] = "",
    output: Annotated[
        str, typer.Option(help="CSV file of the predictions; default: out_of_fold.csv in WORKDIR.")
    ] = "",
    probabilities: Annotated[
        bool,
        typer.Option("--probabilities", help="Write those of all classes too; models run again."),
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Train failed folds again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Cross-validate a configuration. --config.KEY=VALUE changes a key of all folds.

    The training images are divided into folds, by class. For each fold a run is trained on the
    others and tested on it. The same command resumes.
    """
    from vit_jax.commands.train import parse_overrides

    overrides = parse_overrides(context)
    if not config:
        raise UserError("--config is missing; use --config=NAME, see python -m vit_jax configs")
    if output:
        check_file("output", output)

    import jax

    jax.config.update("jax_platforms", "cpu")  # the devices are for the trials
    from vit_jax.config.files import find_config
    from vit_jax.studies import folds as studies
    from vit_jax.studies.sweep.plan import open_plan
    from vit_jax.studies.sweep.running import Sweep
    from vit_jax.studies.sweep.trial import FAILED

    folder = Path(workdir or Path("folds") / find_config(config)[0].stem).expanduser()
    plan = open_plan(studies.plan_of(config, overrides, count, group_column), folder, metric)
    runs = Sweep(plan, folder, lambda text: tell(text, error=True))
    done = runs.train(jobs, retry)
    trials = sorted(runs.trials(), key=lambda trial: trial.number)
    found = studies.read_out_of_fold(plan, trials)
    path = Path(output or folder / studies.PREDICTIONS)
    if found.rows:
        studies.write_predictions(found, path, probabilities)
    if as_json:
        print(to_json({**found.to_dict(), "predictions": str(path) if found.rows else None}))
    for line in () if as_json else found.lines():
        tell(line)
    for trial in trials:
        if (state := trial.state()).name == FAILED:
            tell(f"{trial.folder} (fold {trial.settings['data.fold']}) failed: {state.reason}")
    if found.rows:
        tell(f"{path} has the predictions of {counted(len(found.rows), 'image')}.", error=as_json)
    if not done:
        tell(f"Stopped; run the same command again to go on in {folder}.", error=True)
        raise typer.Exit(EXIT_STOPPED)


def _check_choices(sampler: str, pruner: str) -> None:
    from vit_jax.studies.sweep.plan import PRUNERS, SAMPLERS

    for name, value, known in (("sampler", sampler, SAMPLERS), ("pruner", pruner, PRUNERS)):
        if value not in known:
            raise UserError(
                f"there is no {name} {value!r}; use one of {', '.join(known)}"
                f"{nearest(value, known)}"
            )


def _write_commands(found, path: Path) -> None:
    from vit_jax.studies.sweep.trial import OPEN

    trials = [trial for trial in found.trials() if trial.state().name == OPEN]
    lines = [found.plan.command(trial.settings, trial.folder) for trial in trials]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    tell(
        f"{path} has the commands of {counted(len(lines), 'trial')}; when they have run, the same "
        "command without --commands compares them"
    )


def _report(found, done: bool, as_json: bool) -> None:
    """Print the comparison so far, and the winner with its test result once all is done."""
    from vit_jax.studies import comparison_page
    from vit_jax.studies.sweep import outcome as outcomes

    outcome = outcomes.read_outcome(found.plan, found.folder, found.trials())
    tested = outcomes.test_winner(outcome) if done else None
    if as_json:
        print(to_json(outcomes.to_dict(outcome, tested)))
    elif outcome.found is not None:
        print_table(_table(outcome, comparison_page))
    for line in (*outcomes.lost_lines(outcome), *outcomes.winner_lines(outcome, tested)):
        tell(line, error=as_json)
    if outcome.found is not None:
        page = outcomes.write_outcome_page(outcome, tested)
        tell(f"{page} has the table and the curves.", error=as_json)


def _table(outcome, pages) -> Table:
    headings = pages.headings(outcome.found)
    table = Table(*headings)
    place = headings.index("runs")
    for arm, row in zip(outcome.found.arms, pages.rows(outcome.found), strict=True):
        cells, lost = list(row), outcome.lost(arm)
        if lost:
            cells[place] = f"{len(arm.runs)} of {len(arm.runs) + len(lost)}"
        table.add_row(*map(table_cell, cells))
    return table
