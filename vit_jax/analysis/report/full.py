"""Full report of a finished run: figures that need its model and data, then the page.

Training ends with the figures that cost almost nothing. The others (saliency of the most confident
errors, recall by class size, attention) are drawn here on request.
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
from vit_jax.evaluation.base import Result
from vit_jax.evaluation.metrics import (
    MultiLabelPredictions,
    Predictions,
    read_per_class,
    read_predictions,
)
from vit_jax.inference import Classifier, Predictor, load_model
from vit_jax.progress import progress_bars
from vit_jax.runs import RunDir
from vit_jax.text import counted, tell
from vit_jax.training.open_run import OpenedRun, open_run

Say = Callable[[str], None]

_TO_STDERR = partial(tell, error=True)


def write_full_report(run: RunDir, say: Say = _TO_STDERR) -> Path:
    """Draw the figures that need the model and the data, and write `figures/report.html`.

    Figures that cannot be drawn (unfinished run, missing data, a model without attention) are
    skipped with a note.

    Args:
        run: a run folder.
        say: receives progress messages.

    Raises:
        UserError: the folder has no run that was trained here, or no log lines yet.
    """
    lines = check_reportable(run)
    if run.result() is None:
        say(
            f"the run is not finished: the page is as of step {lines[-1]['step']:,} and omits the "
            "figures of a finished model (confusion, errors, calibration, attention); run "
            "this command again when it is finished"
        )
        return write_report(run)
    try:
        _draw(run, say)
    except UserError as error:
        say(f"figures that need the model or its data are skipped: {error}")
    return write_report(run)


def _draw(run: RunDir, say: Say) -> None:
    """Draw all that needs the data or the model; raise UserError if these are missing."""
    reopened = open_run(run.path)
    source = reopened.source("test")
    if not reopened.experiment.record.classifies:
        result = _evaluated(reopened, source)
        draw_figures(run, run.read_metrics(), source, result.table, result.figures)
        _draw_parts(run, load_model(run.path), source, None, say)
        return
    predictions = _kept_predictions(run, source)
    if predictions is None and not (source.multi_label and _per_class(run).exists()):
        say(f"evaluating on {counted(len(source), 'image')}")
        predictions = _evaluated(reopened, source).table
    if predictions is not None:
        draw_figures(run, run.read_metrics(), source, predictions)

    training = reopened.experiment.train_source
    say(f"counting {counted(len(training), 'training image')} by class")
    counts = training_images(training.labels, len(training.class_names))
    sizes = long_tail(read_per_class(_per_class(run)), counts)
    write_long_tail(sizes, run.figures / "long_tail.csv")
    save_figures(run, {"long_tail": draw_long_tail(sizes)})

    classifier = load_model(run.path)
    if classifier.step != run.result()["step"]:
        raise UserError(
            f"the checkpoint of the result, of step {run.result()['step']:,}, is missing; the only "
            f"one is of step {classifier.step:,}"
        )
    _fit_temperature(run, reopened, load_model(run.path, at_one_size=False), say)
    _draw_parts(run, classifier, source, predictions, say)


def _draw_parts(
    run: RunDir,
    classifier: Predictor,
    source: Source,
    predictions: Predictions | MultiLabelPredictions | None,
    say: Say,
) -> None:
    """Draw the figures that look inside a model, as far as it has what they show."""
    for name, what, draw in _figures_of_model(classifier, source, predictions):
        say(f"drawing {what}")
        (run.figures / f"{name}.png").unlink(missing_ok=True)
        try:
            save_figures(run, {name: draw()})
        except UserError as error:
            say(f"skipped {what}: {error}")


def _fit_temperature(run: RunDir, reopened: OpenedRun, classifier: Classifier, say: Say) -> None:
    """Fit a temperature on the validation data, or without any on the test data."""
    split = "validation" if reopened.experiment.validation_source else "test"
    say(f"fitting a temperature to {split} data")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the page has the text of the warning
            fit_to_run(run, classifier, reopened.source(split), split)
    except UserError as error:
        say(f"skipped the temperature: {error}")


def _figures_of_model(
    classifier: Classifier, source: Source, predictions: Predictions | MultiLabelPredictions | None
) -> Iterator[tuple[str, str, Callable]]:
    """Yield file name, description, and function that draws the figure."""
    if isinstance(predictions, Predictions):
        yield (
            *("saliency", "saliency of the most confident errors"),
            lambda: explain_errors(classifier, source, predictions),
        )
    yield "attention", "attention of sample images", lambda: attention_samples(classifier, source)


def _kept_predictions(run: RunDir, source: Source) -> Predictions | None:
    """Return the predictions saved by training; None if there are none for the result."""
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


def _evaluated(reopened: OpenedRun, source: Source) -> Result:
    """Return the last checkpoint's result on a source, with a progress bar."""
    experiment = reopened.experiment
    variables, _ = reopened.run.read_variables()
    size = experiment.config.evaluate.batch_size or experiment.config.batch_size
    with progress_bars() as show:

        def shown(batches: Iterable) -> Iterator:
            for number, batch in enumerate(batches, start=1):
                yield batch
                show("evaluating", min(number * size, len(source)), len(source))

        return experiment.evaluate(variables, source, shown=shown)


def _per_class(run: RunDir) -> Path:
    return run.figures / "per_class.csv"
