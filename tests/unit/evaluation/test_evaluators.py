"""Probes as evaluators: their data, their metrics, and the same result on any topology."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from tests.support.processes import on_eight_devices
from vit_jax.data import Preprocessing, Source, eval_batches
from vit_jax.data.features import IMAGES
from vit_jax.data.sources.examples import MemoryExamples
from vit_jax.errors import UserError
from vit_jax.evaluation.base import HELD_OUT, Evaluator, Part
from vit_jax.evaluation.few_shot import FewShot
from vit_jax.evaluation.knn import KNN
from vit_jax.evaluation.linear_probe import LinearProbe
from vit_jax.evaluation.registry import (
    EVALUATORS,
    evaluator_names,
    list_evaluators,
    make_evaluator,
    register_evaluator,
)
from vit_jax.evaluation.runner import evaluate
from vit_jax.tasks import Task
from vit_jax.training.distributed.sharding import make_mesh, to_devices
from vit_jax.training.step import make_eval_step

PREPROCESSING = Preprocessing(size=(8, 8), channels=1, mean=(0.0,), std=(1.0,))
DIGITS = load_digits()
PIXELS = DIGITS.images.astype(np.uint8)[:700]
LABELS = DIGITS.target[:700].astype(np.int64)


class HasFeatures:
    def features(self): ...


@dataclass(frozen=True)
class Pixels(Task):
    """A task whose features are the pixels."""

    model: Any = field(default_factory=HasFeatures)

    def features(self, variables, batch):
        return batch["image"].reshape(len(batch["image"]), -1)


def source_of(part, split="train", **changes):
    """Some of the digits of scikit-learn as a source."""
    examples = MemoryExamples(PIXELS[part][..., None], LABELS[part])
    source = Source("digits", split, tuple("0123456789"), f"{split}:{part}", True, examples)
    return dataclasses.replace(source, **changes)


SOURCES = {"train": source_of(slice(0, 501)), HELD_OUT: source_of(slice(501, 700), "test")}


def metrics_of(evaluators, devices=1, batch_size=64, sources=SOURCES):
    """The metrics of each, and the number of batches that were read."""
    mesh, read, passes, found = make_mesh(jax.devices(), devices), [], {}, []

    def batches(source):
        for batch in eval_batches(source, PREPROCESSING, batch_size=batch_size):
            read.append(source.split)
            yield to_devices(batch, mesh)

    for one in evaluators:
        step = make_eval_step(one, one.task, PREPROCESSING, mesh)
        chosen = {split: one.choose(split, sources[split]) for split in one.splits}
        found.append(evaluate(one, step, {}, chosen, batches, passes=passes).metrics)
    return found, len(read)


def test_the_probes_of_pixels_are_those_of_scikit_learn_and_read_the_data_once():
    [knn, linear, few], batches = metrics_of(
        (KNN(Pixels(), neighbours=1), LinearProbe(Pixels()), FewShot(Pixels(), draws=2))
    )
    assert batches == 8 + 4  # of 64: 501 and 199 images
    x, y = PIXELS.reshape(700, -1) / 255.0, LABELS
    theirs = KNeighborsClassifier(1, metric="cosine").fit(x[:501], y[:501])
    expected = theirs.score(x[501:], y[501:])
    assert knn == {"knn_accuracy": expected, "examples": 199, "training_examples": 501}
    scaler = StandardScaler().fit(x[:501])
    theirs = LogisticRegression(max_iter=1000).fit(scaler.transform(x[:501]), y[:501])
    expected = theirs.score(scaler.transform(x[501:]), y[501:])
    assert linear["linear_accuracy"] == pytest.approx(expected, abs=1.5 / 199)
    assert 0.5 < few["few_shot_accuracy"] < knn["knn_accuracy"]


def probed(devices, batch_size):
    kinds = (KNN, LinearProbe, FewShot)
    return metrics_of([kind(Pixels()) for kind in kinds], devices, batch_size)[0]


@pytest.mark.slow
def test_the_result_is_the_same_on_one_and_on_eight_devices():
    one, eight = (on_eight_devices(probed, *case) for case in ((1, 17), (8, 64)))
    assert one == eight and one[0]["knn_accuracy"] > 0.8


def on_arc(degrees, labels):
    """Rows of features at some angles."""
    angles = np.radians(degrees)
    features = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    rows = {"features": features, "label": np.array(labels)}
    return Part({}, rows, len(labels), SOURCES["train"])


def test_neighbours_on_an_arc_by_hand():
    """5 degrees has the neighbours 0, 10 and 20 of classes 0, 0, 1; 50 has 60, 70 and 20: 1."""
    train = on_arc([0, 10, 20, 60, 70], [0, 0, 1, 1, 1])
    test = on_arc([5, 50], [0, 0])
    result = KNN(Pixels(), neighbours=3).finish({"train": train, HELD_OUT: test})
    assert result.metrics == {"knn_accuracy": 0.5, "examples": 2, "training_examples": 5}


@pytest.mark.parametrize("labels", [[0, 1, 0, 1, 0], [1] * 5])
def test_a_model_that_has_diverged_and_a_single_class_have_no_accuracy(labels):
    train = on_arc([0, 10, 20, 60, 70], labels)
    if len(set(labels)) > 1:
        train.rows["features"][2, 0] = np.inf
    for kind in (KNN, LinearProbe, FewShot):
        [(_, accuracy), *_] = (
            kind(Pixels()).finish({"train": train, HELD_OUT: on_arc([5], [0])}).metrics.items()
        )
        assert np.isnan(accuracy)


def test_of_many_training_images_some_at_equal_distances_are_used():
    probe = KNN(Pixels(), most_training=100)
    assert len(probe.choose(HELD_OUT, SOURCES[HELD_OUT])) == 199
    labels = probe.choose("train", SOURCES["train"]).labels
    np.testing.assert_array_equal(labels, LABELS[:501][np.arange(100) * 501 // 100])
    [metrics], _ = metrics_of([probe])
    assert (metrics["examples"], metrics["training_examples"]) == (199, 100)


@pytest.mark.parametrize(
    ("evaluator", "train", "sentence"),
    [
        (KNN(Pixels()), {"features": IMAGES}, "has no labels, but the evaluator 'knn' needs them"),
        (KNN(Pixels()), {"multi_label": True}, "'knn' needs images with exactly one label"),
        (KNN(Pixels(), neighbours=600), {}, "600 neighbours are more than the 501"),
        (FewShot(Pixels(), shots=60), {}, "needs 60 training images of every class, but '.' has"),
        (KNN(Pixels(object())), {}, "'knn' needs the features of the model, but object has no"),
    ],
)
def test_data_that_do_not_fit_are_one_sentence(evaluator, train, sentence):
    sources = {**SOURCES, "train": dataclasses.replace(SOURCES["train"], **train)}
    with pytest.raises(UserError, match=sentence):
        evaluator.check(sources)
    KNN(Pixels()).check(SOURCES)


def test_training_images_of_one_class_are_one_sentence():
    train = source_of(np.flatnonzero(LABELS == 3))
    with pytest.raises(UserError, match="probes need several classes"):
        LinearProbe(Pixels()).check({**SOURCES, "train": train})


# ------------------------------------------------------------------------------------- registry


@pytest.fixture
def registry():
    before = dict(EVALUATORS)
    yield EVALUATORS
    EVALUATORS.clear()
    EVALUATORS.update(before)


def test_a_registered_class_has_its_name_and_is_made_for_a_task(registry):
    @register_evaluator("knn_20")
    @dataclass(frozen=True)
    class Wider(KNN):
        neighbours: int = 20

    made = make_evaluator("knn_20", Pixels())
    assert (made.name, made.neighbours, KNN.name) == ("knn_20", 20, "knn")
    assert {"few_shot", "knn", "knn_20", "linear_probe"} <= set(list_evaluators())


def test_names_are_listed_once_and_unknown_ones_have_a_hint():
    assert evaluator_names("knn, few_shot,knn,") == ("knn", "few_shot")
    with pytest.raises(UserError, match=r"evaluators = 'kn' is unknown; did you mean 'knn'\?"):
        make_evaluator("kn", Pixels())


def test_what_is_no_evaluator_is_refused(registry):
    class Plain(Evaluator): ...

    for kind, sentence in (
        (int, "must be a subclass"),
        (Plain, "put @dataclass"),
        (dataclasses.make_dataclass("Other", [("task", Any)], bases=(Evaluator,)), "taken already"),
    ):
        with pytest.raises(ValueError, match=sentence):
            register_evaluator("knn")(kind)
