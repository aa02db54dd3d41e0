"""Checks of the classes of the data against the model and the loss, before anything is compiled."""

from ml_collections import ConfigDict

from vit_jax.data import Source
from vit_jax.data.features import LABEL, check_inputs
from vit_jax.errors import UserError, shown


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
        raise UserError(
            f"the images of {config.dataset!r} may have several labels, but objective.loss = "
            "'softmax' needs exactly one; use --config.objective.loss=sigmoid"
        )
    if config.objective.class_weights != "none":
        raise UserError(
            f"objective.class_weights = {config.objective.class_weights!r} needs images with "
            f"one label, but those of {config.dataset!r} may have several; use "
            "--config.objective.class_weights=none"
        )
