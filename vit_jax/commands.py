"""The commands of `python -m vit_jax`; `train.py` is the first of them.

Each imports what it needs itself, so that help and mistakes do not wait for JAX.
"""

import csv
import dataclasses
import json
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from vit_jax import analysis_commands, model_commands, robustness_command
from vit_jax.command_options import (
    AsJson,
    Checkpoint,
    Dataset,
    Raw,
    Run,
    Split,
    parse_checkpoint,
    parse_sides,
)
from vit_jax.errors import (
    EXIT_INTERNAL_FAULT,
    EXIT_STOPPED,
    UserError,
    explained,
    nearest,
)
from vit_jax.screens import (
    in_words,
    print_keys,
    print_last_screen,
    print_per_class,
    print_table,
)
from vit_jax.startup import STOPPED, ignore_signals, unwind_on_signals

app = typer.Typer(
    help="Vision Transformers in JAX: train, evaluate, predict, and look at the models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def train(
    context: typer.Context,
    config: Annotated[str, typer.Option(help="Recipe file, such as configs/digits.py.")] = "",
    workdir: Annotated[
        str, typer.Option(help="Run folder; default: runs/ and the recipe's name.")
    ] = "",
    coordinator: Annotated[
        str, typer.Option(help="Of several processes: HOST:PORT of process 0.")
    ] = "",
    processes: Annotated[int | None, typer.Option(help="How many processes there are.")] = None,
    process: Annotated[int | None, typer.Option(help="Which of them this is, from 0.")] = None,
    timeout: Annotated[
        int, typer.Option(help="Seconds that processes wait for each other's sign of life.")
    ] = 100,
    keys: Annotated[bool, typer.Option("--keys", help="List every --config.KEY and stop.")] = False,
) -> None:
    """Train a model, or go on with a run. --config.KEY=VALUE changes a key of the recipe."""
    from vit_jax.config import load_config

    if keys:
        return print_keys()
    overrides = _overrides(context.args)
    if not config:
        raise UserError(f"--config is missing; write --config=RECIPE.py{_recipes()}")
    settings = load_config(config, overrides)
    folder = Path(workdir or Path("runs") / Path(config.rsplit(":", 1)[0]).stem)

    from vit_jax.analysis.report import draw_all
    from vit_jax.analysis.watching import Watching
    from vit_jax.training import distributed, fit
    from vit_jax.training.compile_cache import use_compile_cache

    use_compile_cache(settings.compile_cache, folder)
    unwind_on_signals()
    try:
        distributed.initialize(coordinator, processes, process, timeout=timeout)
        outcome = fit(settings, folder, draw=draw_all, watch=Watching)
    except (Exception, KeyboardInterrupt) as error:
        if not distributed.is_joined():
            raise
        if isinstance(error, KeyboardInterrupt):  # before there was anything to save
            print(STOPPED, file=sys.stderr)
            distributed.leave(EXIT_STOPPED)
        code = explained(error)
        if code == EXIT_INTERNAL_FAULT:
            traceback.print_exc()
            print(
                "error: if this came from a connection, another process has ended: its output says "
                "why. Run the same commands again to go on from the last checkpoint",
                file=sys.stderr,
            )
        distributed.leave(code)
    ignore_signals()
    primary = distributed.is_primary()
    if outcome.result is None:
        fresh = " (without --config.resume=never)" if settings.resume == "never" else ""
        if primary:
            print(
                f"Stopped at step {outcome.step} of {outcome.total_steps}; everything is saved in "
                f"{folder}. Run the same command again to go on{fresh}."
            )
        raise typer.Exit(EXIT_STOPPED)
    if not primary:
        return
    if not outcome.trained:
        print(f"The run in {folder} is finished; nothing was trained.")
    print_last_screen(outcome.run, outcome.result)


def _overrides(arguments: list[str]) -> list[tuple[str, str]]:
    """Pairs of key and text of `--config.KEY=VALUE` or `--config.KEY VALUE`."""
    flags = ["--config", "--workdir", "--coordinator", "--processes", "--process", "--timeout"]
    flags += ["--keys", "--help"]
    pairs, rest = [], list(arguments)
    while rest:
        flag, equals, text = rest.pop(0).partition("=")
        if not flag.startswith("--config."):
            hint = nearest(flag, flags) or f"; there are {', '.join(flags)} and --config.KEY=VALUE"
            raise UserError(f"train has no argument {flag}{hint}")
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise UserError(f"{flag} needs a value: {flag}=VALUE")
            text = rest.pop(0)
        pairs.append((flag.removeprefix("--config."), text))
    return pairs


def _recipes() -> str:
    """The recipes at hand, if any."""
    files = sorted(str(path) for path in Path("configs").glob("*.py"))
    return f", such as {', '.join(files)}" if files else ""


@app.command()
def predict(
    run: Run,
    pictures: Annotated[list[str], typer.Argument(help="Picture files.")],
    top: Annotated[int, typer.Option(min=1, help="Classes to show for each picture.")] = 3,
    checkpoint: Checkpoint = "last",
    raw: Raw = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON line for each picture.")
    ] = False,
    as_csv: Annotated[str, typer.Option("--csv", help="A CSV file to write the classes to.")] = "",
) -> None:
    """Classify pictures with a trained model."""
    from vit_jax.deploy import load

    classifier = load(run, parse_checkpoint(checkpoint), raw=raw)
    failed, rows = 0, []
    for picture in pictures:
        try:
            [guesses] = classifier.predict(picture, top=top)
        except UserError as error:  # one bad picture does not hide the others
            failed += 1
            print(f"error: {error}", file=sys.stderr)
            if as_json:
                print(json.dumps({"picture": picture, "error": str(error)}, ensure_ascii=False))
            continue
        rows += [(picture, place, *guess) for place, guess in enumerate(guesses, start=1)]
        if as_json:
            classes = [guess._asdict() for guess in guesses]
            print(json.dumps({"picture": picture, "classes": classes}, ensure_ascii=False))
        else:
            shown = "   ".join(
                f"{guess.label} {100 * guess.probability:.1f} %" for guess in guesses
            )
            print(f"{picture}: {shown}")
    if as_csv:
        with open(as_csv, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            csv.writer(file).writerows([("picture", "place", "label", "probability"), *rows])
    if failed:
        raise UserError(f"{failed} of {len(pictures)} pictures could not be classified")


@app.command()
def evaluate(
    run: Run,
    split: Split = "test",
    dataset: Dataset = "",
    checkpoint: Checkpoint = "last",
    raw: Raw = False,
    per_class: Annotated[
        bool, typer.Option("--per-class", help="Recall and precision of every class.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a trained model on the data of its own configuration, or on others."""
    from vit_jax.training.reopen import reopen

    reopened = reopen(run, dataset, split)
    experiment, source = reopened.experiment, reopened.source(split)
    variables, step = reopened.run.read_variables(parse_checkpoint(checkpoint), raw=raw)
    metrics, predictions = experiment.evaluate(experiment.eval_step(), variables, source)
    unreadable = experiment.bad_pictures.summary()
    rows = predictions.per_class(source.class_names) if per_class else []
    if as_json:
        classes = {"classes": [dataclasses.asdict(row) for row in rows]} if per_class else {}
        line = {"run": run, "step": step, "split": split, **metrics, **classes}
        print(json.dumps(line, ensure_ascii=False))
    else:
        metric, value = in_words(metrics)
        print(f"{run}, step {step}, {split}: {metric} {value}, loss {metrics['loss']:.4f}")
        print_per_class(rows)
    if unreadable:
        print(f"warning: {unreadable}", file=sys.stderr)


@app.command()
def data(
    dataset: Annotated[str, typer.Argument(help="Such as digits, folder:PATH or tfds:NAME.")],
    split: Annotated[str, typer.Option(help="all, or one, such as train or test[:100].")] = "all",
    data_dir: Annotated[str, typer.Option(help="Where TFDS keeps prepared data.")] = "",
    manual_dir: Annotated[str, typer.Option(help="Where TFDS finds what you downloaded.")] = "",
    output: Annotated[
        str, typer.Option(help="Folder of the report; default: data_report/ and the name.")
    ] = "",
    augment: Annotated[
        str, typer.Option(help="Preset of augmentation to draw, such as light.")
    ] = "",
    size: Annotated[
        int, typer.Option(min=0, help="Side of the model's input; 0: that of most pictures.")
    ] = 0,
    full: Annotated[
        bool, typer.Option("--full", help="Every picture, however many there are.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
) -> None:
    """Look at a dataset before training: counts, sizes, damage, duplicates, a contact sheet."""
    from vit_jax.data.doctor import LIMIT, examine
    from vit_jax.data_report import (
        lines,
        open_splits,
        preset_options,
        progress_bars,
        safe_name,
        tables,
        write,
    )

    preset = preset_options(augment) if augment else None  # a mistake shows before the work
    options = {"data_dir": data_dir or None, **({"manual_dir": manual_dir} if manual_dir else {})}
    sources = open_splits(dataset, split, options)
    folder = Path(output or Path("data_report") / safe_name(dataset))
    folder.mkdir(parents=True, exist_ok=True)
    with progress_bars() as progress:
        report = examine(sources, limit=None if full else LIMIT, progress=progress)
    files = write(folder, dataset, report, next(iter(sources.values())), preset, size)
    if as_json:
        return print(json.dumps({"dataset": dataset, **report.to_dict()}, ensure_ascii=False))
    for table in tables(report):
        print_table(table)
    for line in lines(report, files):
        print(line)


@app.command()
def convert(
    source: Annotated[
        str, typer.Argument(help="Weights: a file or folder, hf://OWNER/NAME, https://..., a run.")
    ],
    folder: Annotated[str, typer.Argument(help="Folder to write; empty or not there yet.")],
    to: Annotated[
        str, typer.Option(help="run (a run folder of ours), timm or huggingface.")
    ] = "run",
    origin: Annotated[
        str, typer.Option(help="Whose weights, where several have such files: timm, deit, mae...")
    ] = "",
    heads: Annotated[
        int, typer.Option(min=0, help="Heads of attention, where nothing says it.")
    ] = 0,
    file_size: Annotated[
        str, typer.Option(help="HEIGHTxWIDTH that the position table is made for, if no square.")
    ] = "",
    image_size: Annotated[
        str, typer.Option(help="HEIGHTxWIDTH to resize positions to; default: as they are.")
    ] = "",
    part: Annotated[
        str, typer.Option(help="Which weights of a file with several, such as model_ema.")
    ] = "",
    class_names: Annotated[
        str, typer.Option(help="Text file with the names of the outputs, one a line.")
    ] = "",
    background_first: Annotated[
        bool, typer.Option("--background-first", help="Output 0 is for no class of that list.")
    ] = False,
) -> None:
    """Turn published weights into a run folder, or a model into files of timm or Hugging Face."""
    from vit_jax.deploy import convert as convert_weights
    from vit_jax.weights.ecosystem import Asked

    asked = Asked(origin or None, heads or None, parse_sides("file-size", file_size))
    size = parse_sides("image-size", image_size)
    record = convert_weights(
        source,
        folder,
        to,
        asked,
        part=part or None,
        image_size=size,
        class_names=class_names or None,
        background_first=background_first,
    )
    print(f"{folder} holds {record.name}, {record.origin}.")
    if to == "run":
        print(f"classify  python -m vit_jax predict {folder} PICTURE.png")
        print(f"fine-tune python train.py --config=RECIPE.py --config.init_from={folder}")


app.command()(analysis_commands.report)
app.command()(analysis_commands.attention)
app.command()(analysis_commands.probe)
app.command()(robustness_command.robustness)
app.command()(analysis_commands.learned)
app.command()(model_commands.models)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
    model_commands.summary
)
