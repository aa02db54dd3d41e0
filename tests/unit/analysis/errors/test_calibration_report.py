"""What makes a model unsure, by the arithmetic of its targets, and the kept temperature."""

import json
from types import SimpleNamespace

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logit

from vit_jax.analysis.errors.calibration_report import (
    FittedTemperature,
    fit_to_run,
    read_temperature,
    why_not_sure,
)
from vit_jax.data import Preprocessing, Source
from vit_jax.data.sources.examples import MemoryExamples
from vit_jax.inference import Classifier
from vit_jax.runs import RunDir


def config(smoothing=0.0, loss="softmax", mixup=0.0, cutmix=0.0, probability=1.0, teacher=""):
    return {
        "objective": {"label_smoothing": smoothing, "loss": loss},
        "augment": {"mixup": mixup, "cutmix": cutmix, "mix_probability": probability},
        "distillation": {"teacher": teacher, "kind": "soft"},
    }


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"smoothing": 0.1},
            "label smoothing of 0.1, whose targets have a probability of at most 91.0 %",
        ),
        ({"smoothing": 0.1, "loss": "sigmoid"}, "95.0 %"),
        ({"mixup": 0.2}, "MixUp (0.2)"),
        ({"cutmix": 1.0, "smoothing": 0.1}, "91.0 % for the true class; CutMix (1)"),
        ({"teacher": "runs/large"}, "the soft targets of a teacher"),
    ],
)
def test_what_makes_a_model_unsure_is_named(settings, told):
    """Of ten classes, smoothing by 0.1 leaves 1 - 0.1 + 0.1 / 10; a yes or no 1 - 0.1 / 2."""
    assert told in why_not_sure(config(**settings), classes=10)


def test_no_cause_is_made_up():
    assert why_not_sure(config(), classes=10) is None
    assert why_not_sure(config(mixup=0.2, probability=0.0), classes=10) is None


class Always(nn.Module):
    """Says the second class with a logit of 3, and of black images nothing."""

    @nn.compact
    def __call__(self, images, train=False):
        logits = jnp.tile(jnp.array([0.0, 3.0]), (len(images), 1))
        return jnp.where(images[:, 0, 0] < 0, jnp.nan, logits)


def test_a_temperature_is_kept_with_what_it_was_fitted_to(tmp_path):
    """Three of four answers are right, so that sigmoid(3 / T) must be 3 / 4."""
    labels, pixels = (np.arange(80) % 4 > 0).astype(int), np.full((80, 1, 1, 1), 255, np.uint8)
    pixels[:8] = 0  # these have no logits, and of the others three of four are right too
    examples = MemoryExamples(pixels, labels)
    source = Source("yes or no", "validation", ("no", "yes"), "print", True, examples)
    preprocessing = Preprocessing((1, 1), channels=1)
    classifier = Classifier(Always(), {}, ("no", "yes"), preprocessing)
    run = RunDir(tmp_path)
    assert read_temperature(run) is None
    run.figures.mkdir()
    found = fit_to_run(run, classifier, source, "validation")
    assert found.temperature == pytest.approx(3 / logit(0.75), rel=1e-4)
    assert read_temperature(run) == FittedTemperature(found.temperature, "validation", 72)
    (run.figures / "temperature.json").write_text(json.dumps({"temperature": 1.5}))
    assert read_temperature(run) is None
    several = Classifier(Always(), {}, ("a", "b", "c"), preprocessing, activation="sigmoid")
    assert fit_to_run(run, several, source, "test") is None
    assert fit_to_run(run, classifier, SimpleNamespace(multi_label=True), "test") is None
