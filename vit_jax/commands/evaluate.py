"""Commands `evaluate`, `calibrate` and `convert`."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vit_jax.commands.options import (
    AsJson,
    Average,
    Averaging,
    Calibrated,
    Checkpoint,
    Dataset,
    Fields,
    Out,
    Raw,
    Run,
    Split,
    Together,
    Views,
    Weights,
    parse_checkpoint,
    parse_fields,
    parse_sides,
)
from vit_jax.commands.output import in_words, print_per_class
from vit_jax.errors import UserError
from vit_jax.plugins import import_plugins, module_names
from vit_jax.progress import Show, progress_bars
from vit_jax.text import counted, tell, to_json

if TYPE_CHECKING:
    from vit_jax.inference.ensembles.ensemble import Ensemble


def evaluate(
    run: Run,
    data: Annotated[
        str, typer.Argument(help="Data such as folder:PATH; the same as --dataset.")
    ] = "",
    split: Split = "test",
    dataset: Dataset = "",
    checkpoint: Checkpoint = "last",
    raw: Raw = False,
    field: Fields = None,
    per_class: Annotated[
        bool, typer.Option("--per-class", help="Print recall and precision of every class.")
    ] = False,
    evaluator: Annotated[
        str, typer.Option(help="Evaluator: knn, linear_probe, few_shot; default: the task's.")
    ] = "",
    plugins: Annotated[str, typer.Option(help="Modules to import first, such as my_module.")] = "",
    as_json: AsJson = False,
    ensemble: Together = None,
    average: Average = "probabilities",
    weights: Weights = "",
    tta: Views = "",
    calibrated: Calibrated = False,
) -> None:
    """Evaluate a trained model on its own data or another dataset.

    With --evaluator, the model may also be published weights, with any dataset that has a training
    split. With --ensemble or --tta, the answers of several models or views are averaged; the data
    are those of the first run.
    """
    if data and dataset:
        raise UserError(f"the dataset is given twice, {data} and --dataset={dataset}; give it once")
    import_plugins(module_names(plugins.replace(" ", "")), "--plugins")
    if evaluator:
        asked = {"per-class": per_class, "ensemble": ensemble, "weights": weights, "tta": tta}
        asked |= {"calibrated": calibrated, "average": average != "probabilities"}
        for option in (name for name, is_asked in asked.items() if is_asked):
            raise UserError(
                f"--{option} needs the evaluator of the task; omit it, or --evaluator={evaluator}"
            )
        fields = parse_fields(field)
        return _print_by(evaluator, run, data or dataset, split, checkpoint, raw, fields, as_json)
    averaging = Averaging(run, ensemble, average, weights, tta, calibrated)
    if averaging.is_asked():
        together = averaging.load(checkpoint, raw, parse_fields(field))
        return _evaluate_ensemble(together, data or dataset, split, per_class, as_json)
    from vit_jax.evaluation.metrics import nonfinite_warning
    from vit_jax.training.open_run import open_run

    reopened = open_run(run, data or dataset, split, parse_fields(field))
    experiment, source = reopened.experiment, reopened.source(split)
    which, record = parse_checkpoint(checkpoint), experiment.record
    variables, step = reopened.run.read_variables(which, raw=raw, record=record)
    with progress_bars("images") as show:
        result = experiment.evaluate(
            variables, source, shown=lambda batches: _watched(batches, len(source), show)
        )
    metrics, predictions = result.metrics, result.table
    unreadable = experiment.decode_errors.summary()
    if per_class and predictions is None:
        raise UserError(f"{run} is no classifier, so it has no classes; omit --per-class")
    rows = predictions.per_class(source.class_names) if per_class else []
    if as_json:
        classes = {"classes": [dataclasses.asdict(row) for row in rows]} if per_class else {}
        line = {"run": run, "step": step, "split": split, **metrics, **classes}
        print(to_json(line))
    else:
        metric, value = in_words(metrics)
        loss = f", loss {metrics['loss']:.4f}" if metric in ("accuracy", "mAP") else ""
        tell(f"{run}, step {step}, {split}: {metric} {value}{loss}")
        print_per_class(rows)
    _warn(unreadable, nonfinite_warning(metrics, split))


def _evaluate_ensemble(
    ensemble: "Ensemble", dataset: str, split: str, per_class: bool, as_json: bool
) -> None:
    """Evaluate several models or views together, and print the metrics of each member too."""
    from vit_jax.data import DecodeErrors
    from vit_jax.evaluation.metrics import nonfinite_warning
    from vit_jax.inference.ensembles.evaluation import evaluate_ensemble
    from vit_jax.runs import RunDir
    from vit_jax.training.open_run import open_run, warn_of_leak

    source, bad = open_run(ensemble.names[0], dataset, split).source(split), DecodeErrors()
    for name in ensemble.names[1:]:
        warn_of_leak(RunDir(name), source)
    with progress_bars("images") as show:
        result, of_members = evaluate_ensemble(
            ensemble, source, bad=bad, shown=lambda batches: _watched(batches, len(source), show)
        )
    metrics, rows = result.metrics, []
    if per_class:
        rows = result.table.per_class(source.class_names)
    members = dict(zip(ensemble.names, of_members, strict=True))
    if as_json:
        line = {"run": ensemble.names[0], "split": split, **metrics}
        line["members"] = {name: one.metrics for name, one in members.items()}
        line |= {"average": ensemble.average, "views": len(ensemble.views)}
        classes = {"classes": [dataclasses.asdict(row) for row in rows]} if per_class else {}
        print(to_json(line | classes))
    else:
        together = [
            f"{len(members)} runs" * (len(members) > 1),
            f"{len(ensemble.views)} views" * (len(ensemble.views) > 1),
        ]
        is_calibrated = any(one.temperature != 1 for one in ensemble.members)
        alone = "calibrated" if is_calibrated else "1 run"
        averaged = " and ".join(filter(None, together)) or alone
        for name, one in members.items():
            metric, value = in_words(one.metrics)
            tell(f"{name}, {split}: {metric} {value}, loss {one.metrics['loss']:.4f}")
        metric, value = in_words(metrics)
        tell(f"{averaged}, {split}: {metric} {value}, loss {metrics['loss']:.4f}")
        print_per_class(rows)
    _warn(bad.summary(), nonfinite_warning(metrics, split))


def _print_by(
    evaluator: str,
    run: str,
    dataset: str,
    split: str,
    checkpoint: str,
    raw: bool,
    fields: dict[str, Any],
    as_json: bool,
) -> None:
    """Evaluate by one evaluator, and print its metrics."""
    from vit_jax.training.evaluate_by import evaluate_by

    with progress_bars("images") as show:
        judged = evaluate_by(
            evaluator,
            run,
            dataset=dataset,
            split=split,
            checkpoint=parse_checkpoint(checkpoint),
            raw=raw,
            fields=fields,
            shown=lambda batches, source: _watched(batches, len(source), show),
        )
    metrics = {"examples": 0, **judged.metrics}
    if as_json:
        line = {"run": run, "step": judged.step, "split": judged.split, "evaluator": evaluator}
        print(to_json({**line, **metrics}))
    else:
        step = "" if judged.step is None else f", step {judged.step}"
        metric, value = in_words(metrics)
        tell(f"{run}{step}, {judged.split}: {metric} {value}")
    _warn(judged.unreadable)


def _warn(*sentences: str | None) -> None:
    """Print those sentences that there are as warnings."""
    for sentence in filter(None, sentences):
        tell(f"warning: {sentence}", error=True)


def _watched(batches: Iterator[dict[str, Any]], total: int, show: Show) -> Iterator[dict[str, Any]]:
    """Yield the batches, and show the progress of the evaluation."""
    done = 0
    for batch in batches:
        yield batch
        done = min(done + len(batch["mask"]), total)
        show("evaluated", done, total)


def calibrate(
    run: Run,
    split: Annotated[
        str, typer.Option(help="Split to fit on; default: validation, or test without one.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Fit the temperature that makes the probabilities of a run agree with its accuracy.

    It stays with the run, for --calibrated of predict and evaluate. Predicted classes stay as they
    are.
    """
    from vit_jax.analysis.errors.calibration import judged, reliability
    from vit_jax.analysis.errors.calibration_report import fit_to_run
    from vit_jax.inference.ensembles.ensemble import Ensemble
    from vit_jax.inference.ensembles.evaluation import evaluate_ensemble
    from vit_jax.inference.loading import load_classifier
    from vit_jax.training.open_run import open_run

    reopened, classifier = open_run(run), load_classifier(run)
    split = split or ("validation" if reopened.experiment.validation_source else "test")
    fitted = fit_to_run(reopened.run, classifier, reopened.source(split), split)
    if fitted is None:
        raise UserError(
            f"{run} has independent probabilities of several classes, which no temperature of a "
            "softmax calibrates; use its probabilities as they are"
        )
    source, found = reopened.source("test"), {}
    for name, temperature in (("before", 1.0), ("after", float(fitted.temperature))):
        ensemble = Ensemble([classifier], [run], temperatures=[temperature])
        result, _ = evaluate_ensemble(ensemble, source)
        error = reliability(*judged(result.table)).expected_error
        found[name] = {"loss": result.metrics["loss"], "expected_calibration_error": error}
    if as_json:
        line = {"run": run, "temperature": float(fitted.temperature), "split": fitted.split}
        return print(to_json({**line, "images": fitted.images, "test": found}))
    tell(
        f"{run}: temperature {fitted.temperature.in_words()}, fitted on "
        f"{counted(fitted.images, f'{fitted.split} image')}"
    )
    before, after = found["before"], found["after"]
    tell(
        f"test: expected calibration error {100 * before['expected_calibration_error']:.2f} -> "
        f"{100 * after['expected_calibration_error']:.2f} %, loss {before['loss']:.4f} -> "
        f"{after['loss']:.4f}"
    )
    if split == "test":
        tell(
            "warning: it was fitted on the test images, which therefore look better than others; "
            "set data.validation to fit on other images",
            error=True,
        )


def convert(
    source: Annotated[
        str, typer.Argument(help="Weights: a file, folder, hf://OWNER/NAME, https://... or run.")
    ],
    folder: Out,
    to: Annotated[
        str,
        typer.Option(
            help="Output format: run (a folder), timm, huggingface, torchvision; with "
            "texts openclip, big_vision, openai or pe."
        ),
    ] = "run",
    origin: Annotated[
        str, typer.Option(help="Origin of ambiguous weights: timm, deit, clip...")
    ] = "",
    heads: Annotated[
        int, typer.Option(min=0, help="Number of attention heads, if it is ambiguous.")
    ] = 0,
    file_size: Annotated[
        str, typer.Option(help="HEIGHTxWIDTH of the position table, if not square.")
    ] = "",
    image_size: Annotated[
        str, typer.Option(help="HEIGHTxWIDTH to resize positions to; default: unchanged.")
    ] = "",
    patch_size: Annotated[
        str, typer.Option(help="HEIGHTxWIDTH to resize the patch kernel to; default: unchanged.")
    ] = "",
    part: Annotated[
        str, typer.Option(help="Weights in a file with several, such as model_ema.")
    ] = "",
    class_names: Annotated[
        str, typer.Option(help="Text file of the class names, one per line.")
    ] = "",
    background_first: Annotated[
        bool,
        typer.Option(
            "--background-first", help="Output 0 is background, not a class of that list."
        ),
    ] = False,
    with_decoder: Annotated[
        bool, typer.Option("--with-decoder", help="Keep the decoder of a masked autoencoder.")
    ] = False,
    image_tower: Annotated[
        bool, typer.Option("--image-tower", help="Leave out the text tower of a CLIP or SigLIP.")
    ] = False,
    text_heads: Annotated[
        int, typer.Option(min=0, help="Number of heads of a text tower, if it is ambiguous.")
    ] = 0,
) -> None:
    """Convert published weights to a run folder, or a model to timm or Hugging Face files."""
    from vit_jax.inference import convert as convert_weights
    from vit_jax.inference.loading import writes_files
    from vit_jax.weights.formats import Hints

    file_sides = parse_sides("file-size", file_size)
    hints = Hints(origin or None, heads or None, file_sides, text_heads or None)
    size, patch = parse_sides("image-size", image_size), parse_sides("patch-size", patch_size)
    if with_decoder:
        from vit_jax.inference.pretrained import convert_with_decoder

        if size or patch or part or class_names:
            raise UserError(
                "--with-decoder keeps a model as it is; omit --image-size, --patch-size, --part "
                "and --class-names"
            )
        record = convert_with_decoder(source, folder, to, hints)
        return tell(f"{folder} holds {record.name} with its decoder, {record.origin}.")
    record = convert_weights(
        source,
        folder,
        to,
        hints,
        part=part or None,
        image_size=size,
        patch_size=patch,
        class_names=class_names or None,
        background_first=background_first,
        image_tower=image_tower,
    )
    both = record.task == "contrastive"
    tell(f"{folder} holds {record.name}{' and a text tower' * both}, {record.origin}.")
    if to == "run":
        if both:
            tell(f"compare   python -m vit_jax zero-shot {folder} IMAGE.png --classes=cat,dog")
            if not (Path(folder) / "tokenizer").is_dir():
                tell("          with its tokenizer, which was not beside it: --tokenizer=PATH")
        elif writes_files(folder):
            tell(f"predict   python -m vit_jax predict {folder} IMAGE.png --output=FOLDER")
        elif record.class_names:
            tell(f"classify  python -m vit_jax predict {folder} IMAGE.png")
        else:
            tell(f'in Python import vit_jax; encoder = vit_jax.load("{folder}")')
        tell(f"fine-tune python -m vit_jax train --config=finetune --config.init_from={folder}")
