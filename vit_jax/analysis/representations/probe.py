"""Probes of frozen features: linear probe, k-NN and few-shot.

    train, test = (extract(classifier, source) for source in (train_source, test_source))
    linear_probe(train, test)                 # accuracy of logistic regression on the features
    few_shot(train, test, shots=(1, 5, 10))   # of ridge regression on a few images per class

    train, test = (extract_layers(classifier, source) for source in (train_source, test_source))
    probe_layers(train, test)                 # all probes for every layer, with intervals

Probes use pooled features without fine-tuning. For the two regressions the features are
standardised with the statistics of the training images; k-NN uses the angle between features.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from vit_jax.analysis.representations.features import Layers, check_features, real_rows
from vit_jax.analysis.weights_view.tables import confidence_interval
from vit_jax.data import Source
from vit_jax.evaluation.few_shot import FewShotAccuracy, few_shot
from vit_jax.evaluation.knn import knn
from vit_jax.evaluation.linear_probe import linear_probe
from vit_jax.evaluation.probe import Pooled, check_finite, check_labels
from vit_jax.inference import Classifier

SHOTS = (1, 5, 10)


class Measured(NamedTuple):
    """Accuracy on test images, with its 95 % confidence interval.

    The interval is Wilson's: it covers the choice of test images, not of training images.
    """

    accuracy: float
    low: float
    high: float


class LayerProbe(NamedTuple):
    """Probe results of one layer.

    layer: its name. width: size of a feature. linear: by `linear_probe`. knn: by nearest
    neighbours. few_shot: for each number of shots that the training images allow.
    """

    layer: str
    width: int
    linear: Measured
    knn: Measured
    few_shot: tuple[FewShotAccuracy, ...]


def extract(classifier: Classifier, source: Source, batch_size: int = 64) -> Pooled:
    """Extract pooled features of every readable image of a source, in float32.

    Raises UserError if images have several labels, or none can be read.
    """

    check_features(classifier.model)

    @jax.jit
    def forward(variables, images):
        images = classifier.preprocessing.normalize(images)
        return [classifier.model.apply(variables, images, method="features").pooled]

    features, labels = [], []
    for [pooled], batch_labels in real_rows(
        classifier, source, forward, classifier.variables, batch_size
    ):
        features.append(np.asarray(pooled, np.float32))
        labels.append(batch_labels)
    return Pooled(np.concatenate(features), np.concatenate(labels))


def probe_layers(
    train: Layers,
    test: Layers,
    *,
    shots: Sequence[int] = SHOTS,
    draws: int = 10,
    neighbours: int = 10,
    l2: float = 1.0,
    few_shot_l2: float = 10.0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[LayerProbe]:
    """Probe the features of every layer: linear probe, k-NN and few-shot.

    Args:
        train, test: features of the same layers.
        shots, draws: of `few_shot`.
        neighbours: k of the k-NN probe.
        l2: of `linear_probe`. few_shot_l2: of `few_shot`; 10 is better than its default
            for narrow layers, especially with few images.
        progress: called with the number of layers done.

    Raises:
        UserError: images of a single class, fewer of them than neighbours, or features that are
            not finite.
    """
    check_labels(train.labels, neighbours)
    probes = []
    for number, layer in enumerate(train.features):
        of_train, of_test = train.pooled(layer), test.pooled(layer)
        for one in (of_train, of_test):
            check_finite(one.features, layer)
        probes.append(
            LayerProbe(
                layer,
                of_train.features.shape[1],
                _measured(linear_probe(of_train, of_test, l2=l2), of_test),
                _measured(knn(of_train, of_test, neighbours), of_test),
                tuple(few_shot(of_train, of_test, shots=shots, draws=draws, l2=few_shot_l2)),
            )
        )
        progress(number + 1, len(train.features))
    return probes


def _measured(accuracy: float, test: Pooled) -> Measured:
    return Measured(accuracy, *confidence_interval(accuracy, len(test.labels)))
