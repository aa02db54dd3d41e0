"""Calibration section of a run's report: curve, errors, likely cause and temperature.

A temperature is fitted to logits, which the saved predictions do not contain, so `fit_to_run` runs
the model again and saves the result for the page.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from vit_jax.analysis.errors.calibration import (
    LEAST_IN_BIN,
    Reliability,
    Temperature,
    fit_temperature,
    judged,
    reliability,
)
from vit_jax.analysis.report.html import note, paragraph, percent, stored, table
from vit_jax.analysis.representations.features import real_rows, sample
from vit_jax.data import Source
from vit_jax.data.features import SOFT_LABEL
from vit_jax.evaluation.metrics import read_predictions
from vit_jax.inference import Classifier
from vit_jax.runs import RunDir
from vit_jax.runs.temperature import temperature_file
from vit_jax.text import counted, to_json

_MOST_IMAGES = 5000  # whose logits are kept in memory; more would change the third digit
_WITHIN = 0.005  # difference of confidence and accuracy that counts as equal


class FittedTemperature(NamedTuple):
    """Fitted temperature of a run, with the split and the number of images used."""

    temperature: Temperature
    split: str
    images: int


def fit_to_run(
    run: RunDir, classifier: Classifier, source: Source, split: str
) -> FittedTemperature | None:
    """Fit a temperature to images of a source and save it for the report.

    Where these have soft labels, it is fitted to them.

    Args:
        source: images that the model was not trained on.
        split: their name in the run, such as "validation".

    Returns:
        None if no temperature can be fitted: images with several labels, or binary decisions,
        which no softmax turns into probabilities.

    Raises:
        UserError: all predictions are correct, or too few of the logits are finite.
    """
    temperature_file(run).unlink(missing_ok=True)
    binary = len(classifier.class_names) == 2
    if source.multi_label or (classifier.activation != "softmax" and not binary):
        return None
    some = sample(source, _MOST_IMAGES)

    def forward(variables: Any, images: np.ndarray) -> list:
        return [classifier.logits(images)]

    logits, labels = [], []
    target = SOFT_LABEL if SOFT_LABEL in some.features else "label"
    parts = real_rows(classifier, some, forward, classifier.variables, 64, target=target)
    for [rows], batch in parts:
        finite = np.isfinite(rows).all(axis=1)
        logits.append(rows[finite])
        labels.append(batch[finite])
    labels = np.concatenate(labels)
    temperature = fit_temperature(np.concatenate(logits), labels)
    kept = {"temperature": temperature, "at_bound": temperature.at_bound}
    kept |= {"split": split, "images": len(labels)}
    run.figures.mkdir(exist_ok=True)
    temperature_file(run).write_text(to_json(kept) + "\n", encoding="utf-8")
    return FittedTemperature(temperature, split, len(labels))


def read_temperature(run: RunDir) -> FittedTemperature | None:
    """Return the result saved by `fit_to_run`; None if there is none."""
    try:
        kept = json.loads(temperature_file(run).read_text(encoding="utf-8"))
        temperature = Temperature(kept["temperature"], kept["at_bound"])
        return FittedTemperature(temperature, kept["split"], kept["images"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def calibration_parts(run: RunDir, config: dict[str, Any]) -> Iterator[str]:
    """Yield the reliability curve and calibration errors of the saved predictions."""
    path = run.figures / "predictions.csv"
    if not path.exists() or not (run.figures / "calibration.png").exists():
        return
    class_names = run.read_model().class_names
    predictions = read_predictions(path, class_names)
    right, confidence = judged(predictions)
    found = reliability(right, confidence)
    equal = reliability(right, confidence, equal_mass=True)
    yield paragraph(in_words(found))
    if found.overconfidence < -_WITHIN and (cause := why_not_sure(config, len(class_names))):
        yield paragraph(cause)
    if lost := int(np.count_nonzero(~predictions.answered)):
        yield note(
            f"{counted(lost, 'image')} without finite logits are counted here as errors with a "
            "confidence of 100 %."
        )
    rightness = "accuracy" if predictions.agreement is None else "agreement with the soft labels"
    yield table(
        [
            ("expected calibration error", percent(found.expected_error), "bins of equal width"),
            ("- the same", percent(equal.expected_error), "bins of equally many images"),
            ("largest gap of a bin", *_largest_gap(found)),
            ("mean confidence", percent(float(confidence.mean())), ""),
            (rightness, percent(float(right.mean())), f"of {counted(len(right), 'image')}"),
            ("fitted temperature", *_fitted(run)),
        ]
    )
    yield stored(
        run,
        "calibration",
        "Reliability curve: accuracy over confidence",
        "Images in 15 bins of confidence, the probability of the predicted class. On the dashed "
        "line the model is calibrated; below it is overconfident, above it underconfident. The "
        "whiskers are 95 % intervals (Wilson), the numbers below are images per bin: a "
        "gap in a bin of few images means little. Guo et al. 2017.",
    )


def in_words(found: Reliability) -> str:
    """Return the calibration in a sentence."""
    points = 100 * abs(found.overconfidence)
    if abs(found.overconfidence) < _WITHIN:
        return "On average, confidence equals accuracy within half a percentage point."
    which = "overconfident" if found.overconfidence > 0 else "underconfident"
    return f"On average the model is {which}, by {points:.1f} percentage points."


def why_not_sure(config: dict[str, Any], classes: int) -> str | None:
    """Return the causes of underconfidence in a configuration, in a sentence; None without any."""
    causes, smoothing = [], config["objective"]["label_smoothing"]
    binary = config["objective"]["loss"] == "sigmoid"
    if smoothing:
        most = 1 - smoothing / 2 if binary else 1 - smoothing + smoothing / classes
        causes.append(
            f"label smoothing of {smoothing:g}, whose targets have a probability of at most "
            f"{100 * most:.1f} % for the true class"
        )
    for key, name in (("mixup", "MixUp"), ("cutmix", "CutMix")):
        if config["augment"][key] and config["augment"]["mix_probability"]:
            causes.append(
                f"{name} ({config['augment'][key]:g}), whose targets are mixed from two images"
            )
    if config["distillation"]["teacher"] and config["distillation"]["kind"] == "soft":
        causes.append("the soft targets of a teacher")
    if not causes:
        return None
    return (
        f"A known cause is the training: {'; '.join(causes)}. This is not "
        "necessarily a defect: it often improves accuracy and only lowers the probabilities, which "
        "a temperature below 1 raises."
    )


def _largest_gap(found: Reliability) -> tuple[str, str]:
    gap = found.largest_gap()
    among = f"among bins with at least {LEAST_IN_BIN} images"
    if gap is None:
        return "-", f"no bin has {LEAST_IN_BIN} images"
    where = f"{100 * gap.lower:.0f} to {100 * gap.upper:.0f} % confidence, {gap.images:,} images"
    return percent(gap.error), f"{where}; {among}"


def _fitted(run: RunDir) -> tuple[str, str]:
    fitted = read_temperature(run)
    if fitted is None:
        return "-", "not fitted: run python -m vit_jax report RUN (needs some errors)"
    on = f"on {counted(fitted.images, f'{fitted.split} image')}; divide logits by it"
    if fitted.split != "validation":
        on += "; set data.validation to fit it on data that are not used for the result"
    return fitted.temperature.in_words(), on
