"""The whole report of a finished run: first what needs its model and its data, then the page.

Training ends with the parts that cost next to nothing. The others (what decides the surest
mistakes, classes by size, where the model looks) are drawn here, when somebody asks for them.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from vit_jax.analysis.errors.calibration_report import fit_to_run
from vit_jax.analysis.errors.long_tail import (
    draw_long_tail,
    long_tail,
    training_images,
    write_long_tail,
)
from vit_jax.analysis.errors.most_confident_errors import attention_samples, explain_errors
from vit_jax.analysis.report.figures import draw_figures, save_figures
from vit_jax.analysis.report.run_report import check_reportable, write_report
from vit_jax.data import Source
from vit_jax.errors import UserError
from vit_jax.evaluation.metrics import (
    MultiLabelPredictions,
    Predictions,
    read_per_class,
    read_predictions,
)
from vit_jax.inference import Classifier, load
from vit_jax.progress import progress_bars
from vit_jax.runs import RunDir
from vit_jax.text import counted, tell
from vit_jax.training.evaluate import evaluate
from vit_jax.training.open_run import OpenedRun, open_run

Say = Callable[[str], None]

_TO_STDERR = partial(tell, error=True)


def write_full_report(run: RunDir, say: Say = _TO_STDERR) -> Path:
    """Draws what needs the model and the data, and writes `figures/report.html`.

    What cannot be drawn (an unfinished run, data that are gone, a model without attention) is left
    out, and said.

    Args:
        run: a run folder.
        say: takes sentences for the person who waits.

    Raises:
        UserError: the folder holds no run that was trained here, or nothing of it is logged yet.
    """
    lines = check_reportable(run)
    if run.result() is None:
        say(
            f"the run is not finished: the page is as of step {lines[-1]['step']:,} and leaves out "
            "what is drawn of a finished model (confusion, mistakes, calibration, attention); run "
            "this again at its end"
        )
        return write_report(run)
    try:
        _draw(run, say)
    except UserError as error:
        say(f"left out is what needs the model or its data: {error}")
    return write_report(run)


def _draw(run: RunDir, say: Say) -> None:
    """All that needs the data or the model; UserError where these are gone."""
    reopened = open_run(run.path)
    source = reopened.source("test")
    predictions = _kept_predictions(run, source)
    if predictions is None and not (source.multi_label and _per_class(run).exists()):
        say(f"evaluating on {counted(len(source), 'image')}")
        predictions = _evaluated(reopened, source)
    if predictions is not None:
        draw_figures(run, run.read_metrics(), source, predictions)

    training = reopened.experiment.train_source
    say(f"counting {counted(len(training), 'training image')} by class")
    counts = training_images(training.labels, len(training.class_names))
    sizes = long_tail(read_per_class(_per_class(run)), counts)
    write_long_tail(sizes, run.figures / "long_tail.csv")
    save_figures(run, {"long_tail": draw_long_tail(sizes)})

    classifier = load(run.path)
    if classifier.step != run.result()["step"]:
        raise UserError(
            f"the checkpoint of the result, of step {run.result()['step']:,}, is gone; there is "
            f"that of step {classifier.step:,}"
        )
    _fit_temperature(run, reopened, classifier, say)
    for name, what, draw in _images_of_model(classifier, source, predictions):
        say(f"drawing {what}")
        (run.figures / f"{name}.png").unlink(missing_ok=True)
        try:
            save_figures(run, {name: draw()})
        except UserError as error:
            say(f"left out is {what}: {error}")


def _fit_temperature(run: RunDir, reopened: OpenedRun, classifier: Classifier, say: Say) -> None:
    """Fits a temperature on the validation data, or where there are none on the test data."""
    split = "validation" if reopened.experiment.validation_source else "test"
    say(f"fitting a temperature to {split} data")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the page says what the warning does
            fit_to_run(run, classifier, reopened.source(split), split)
    except UserError as error:
        say(f"left out is the temperature: {error}")


def _images_of_model(
    classifier: Classifier, source: Source, predictions: Predictions | MultiLabelPredictions | None
) -> Iterator[tuple[str, str, Callable]]:
    """File name, words, and what draws it."""
    if isinstance(predictions, Predictions):
        yield (
            *("saliency", "what decides the surest mistakes"),
            lambda: explain_errors(classifier, source, predictions),
        )
    yield "attention", "where the model looks", lambda: attention_samples(classifier, source)


def _kept_predictions(run: RunDir, source: Source) -> Predictions | None:
    """The predictions that training has left; None where there are none behind the result."""
    path, result = run.figures / "predictions.csv", run.result()
    if source.multi_label or not path.exists():
        return None
    try:
        kept = read_predictions(path, source.class_names)
    except UserError:
        return None
    same = len(kept.labels) == result["examples"] and np.isclose(
        np.mean(kept.labels == kept.predicted), result["accuracy"], atol=1e-6
    )
    return kept if same else None


def _evaluated(reopened: OpenedRun, source: Source) -> Predictions | MultiLabelPredictions:
    """What the last checkpoint says of a source, with a bar for the person who waits."""
    experiment = reopened.experiment
    variables, _ = reopened.run.read_variables()
    size = experiment.config.evaluate.batch_size or experiment.config.batch_size
    classes = len(experiment.record.class_names)
    with progress_bars() as show:

        def shown(batches: Iterable) -> Iterator:
            for number, batch in enumerate(batches, start=1):
                yield batch
                show("evaluating", min(number * size, len(source)), len(source))

        batches = shown(experiment.eval_batches(source))
        return evaluate(
            experiment.eval_step(), variables, batches, experiment.mesh, classes
        ).predictions


def _per_class(run: RunDir) -> Path:
    return run.figures / "per_class.csv"
