"""The commands that use a trained model: `predict`, `evaluate` and `convert`."""

import dataclasses
import json
import sys
from typing import Annotated

import typer

from vit_jax.commands.options import (
    AsJson,
    Checkpoint,
    Dataset,
    Raw,
    Run,
    Split,
    check_file,
    parse_checkpoint,
    parse_sides,
)
from vit_jax.commands.screens import in_words, print_per_class
from vit_jax.csv_files import write_csv
from vit_jax.errors import UserError


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
    if as_csv:
        check_file("csv", as_csv)
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
        write_csv(as_csv, ("picture", "place", "label", "probability"), rows)
    if failed:
        raise UserError(f"{failed} of {len(pictures)} pictures could not be classified")


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
