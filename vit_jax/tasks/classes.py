"""Classes of the data: their weights, and checks against the model and the loss."""

from collections.abc import Sequence

import numpy as np
from ml_collections import ConfigDict

from vit_jax.data import Source
from vit_jax.data.features import LABEL, SOFT_LABEL, check_inputs
from vit_jax.errors import UserError, nearest, shown

Weights = str | Sequence[tuple[str, float]]
"""Value of `objective.class_weights`: "none", "balanced", or weights by the name of a class."""


def classes_of_model(config: ConfigDict, source: Source) -> int:
    """Return the number of outputs of a classifier's head for these data.

    It is the number of classes, or 1 where the configuration asks for one output that separates
    two classes.

    Raises:
        UserError: the loss or the configured number of outputs does not fit the labels.
    """
    _check_loss(config, source)
    of_data = len(source.class_names)
    outputs = config.model.get("num_classes", of_data)
    if outputs == 1 < of_data and config.objective.loss == "softmax":
        raise UserError(
            "model.num_classes = 1 and objective.loss = 'softmax': the softmax of one output is "
            f"always 1, so the {of_data} classes of {config.dataset!r} cannot be learned; "
            "omit model.num_classes (one output can separate only two classes, with "
            "--config.objective.loss=sigmoid)"
        )
    if outputs != of_data and not (outputs == 1 and of_data == 2 and not source.multi_label):
        raise UserError(
            f"model.num_classes = {shown(outputs)}, but the data set {config.dataset!r} has "
            f"{of_data} classes; omit model.num_classes to take it from the data"
        )
    return outputs


def _check_loss(config: ConfigDict, source: Source) -> None:
    """Raise UserError if the loss does not fit the labels."""
    check_inputs({"label": LABEL}, source, wanted_by="classification")
    if config.data.sampling == "balanced" and config.objective.class_weights == "balanced":
        raise UserError(
            "data.sampling = 'balanced' shows every class equally often, and "
            "objective.class_weights = 'balanced' would weight rare classes a second time; "
            "set one of the two back (to natural, or to none)"
        )
    if not source.multi_label:
        if len(source.class_names) == 1 and config.objective.loss == "sigmoid":
            raise UserError(
                f"every image of {config.dataset!r} has its only class, so objective.loss = "
                "'sigmoid' has no negative examples; use --config.objective.loss=softmax, "
                "or data with another class"
            )
        return
    if config.objective.loss == "softmax":
        have = "have probabilities that do not sum to 1"
        have = have if SOFT_LABEL in source.features else "may have several labels"
        raise UserError(
            f"the images of {config.dataset!r} {have}, but objective.loss = 'softmax' needs one "
            "label for each, or probabilities that do; use --config.objective.loss=sigmoid"
        )
    if config.objective.class_weights != "none":
        raise UserError(
            f"objective.class_weights = {config.objective.class_weights!r} needs images with "
            f"one label, but those of {config.dataset!r} may have several; use "
            "--config.objective.class_weights=none"
        )


def class_weights(weights: Weights, source: Source) -> tuple[float, ...] | None:
    """Return the weight of each class in the training loss; None if all are the same.

    Raises:
        UserError: a name is none of a class, or all weights of the classes with images are 0.
    """
    names = source.class_names
    if weights == "none":
        return None
    if weights == "balanced":
        return balanced_weights(source.labels, len(names))
    given = dict(weights)
    for name in given:
        if name not in names:
            raise UserError(
                f"objective.class_weights names {shown(name)}, which is no class of "
                f"{source.name!r}{nearest(name, names)}"
            )
    found = tuple(given.get(name, 1.0) for name in names)
    if not np.any(np.array(found)[np.unique(source.labels)]):
        raise UserError(
            "objective.class_weights are 0 for every class with images, so that nothing would be "
            "learned; give one of them a weight above 0"
        )
    return found


def balanced_weights(labels: np.ndarray, classes: int) -> tuple[float, ...]:
    """Return class weights with which every class has an equal part in the loss.

    With N examples, n of them in a class, and K classes that have any, the weight is N / (K n), so
    that the weights average to 1 over the examples; a class without examples gets 0. This is the
    rule of scikit-learn's "balanced", after King and Zeng (2001).
    """
    counts = np.bincount(labels, minlength=classes)
    present = np.count_nonzero(counts)
    return tuple(float(len(labels) / (present * n)) if n else 0.0 for n in counts)
