"""Evaluation of an ensemble: the metrics of a classifier, from its mean probabilities."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Float

from vit_jax.data import DecodeErrors, Source, eval_batches
from vit_jax.data.features import SOFT_LABEL
from vit_jax.data.streams import Batch
from vit_jax.evaluation.base import Result
from vit_jax.evaluation.metrics import NO_ANSWER, MultiLabelPredictions, Predictions
from vit_jax.inference.ensembles.ensemble import Ensemble

_LEAST = 1e-12  # probability whose logarithm is taken in place of that of 0


def evaluate_ensemble(
    ensemble: Ensemble,
    source: Source,
    *,
    batch_size: int = 64,
    bad: DecodeErrors | None = None,
    shown: Callable[[Iterator[Any]], Iterator[Any]] = iter,
) -> tuple[Result, list[Result]]:
    """Return the result of an ensemble on every example of a source, and those of its members.

    The metrics are those of a classifier; the loss is the cross-entropy of the probabilities, in
    nats. Members are evaluated on the image itself, without other views.

    Args:
        bad: collects unreadable images.
        shown: passes the batches of the first preprocessing on, such as to show the progress.
    """
    groups = list(ensemble.groups.items())
    streams = [
        eval_batches(source, preprocessing, batch_size=batch_size, bad=bad)
        for preprocessing, _ in groups
    ]
    streams[0] = shown(streams[0])
    whole: list[list[np.ndarray]] = [[] for _ in range(len(ensemble.members) + 1)]
    labels, targets, places, begun = [], [], [], 0
    for batches in zip(*streams, strict=True):
        outputs = [
            {
                name: np.asarray(rows)
                for name, rows in ensemble.run_group(group, batch["image"]).items()
            }
            for (_, group), batch in zip(groups, batches, strict=True)
        ]
        real = np.flatnonzero(np.all([batch["mask"] > 0 for batch in batches], axis=0))
        whole[0].append(ensemble.mean(outputs)[real])
        for number in range(len(ensemble.members)):
            whole[number + 1].append(ensemble.of_member(number, outputs)[real])
        labels.append(batches[0]["label"][real])
        targets.append(_targets(batches[0], len(ensemble.class_names))[real])
        places.append(begun + real)
        begun += len(batches[0]["mask"])
    truth = [np.concatenate(arrays) for arrays in (labels, targets, places)]
    found = [_result(np.concatenate(rows), *truth, ensemble, source) for rows in whole]
    return found[0], found[1:]


def _result(
    probabilities: Float[np.ndarray, "n classes"],
    labels: np.ndarray,
    targets: Float[np.ndarray, "n classes"],
    index: np.ndarray,
    ensemble: Ensemble,
    source: Source,
) -> Result:
    answered = np.isfinite(probabilities).all(axis=1)
    sure = np.clip(np.where(answered[:, None], probabilities, 0.5), _LEAST, 1)
    if source.multi_label:
        present = labels > 0.5
        table = MultiLabelPredictions(present, np.where(answered[:, None], probabilities, np.nan))
        right = np.mean((sure > 0.5) == present, axis=1) * answered
        losses, name = _binary(sure, targets), "label_accuracy"
    else:
        true = np.take_along_axis(probabilities, labels[:, None], axis=1)
        rank = np.where(answered, np.sum(probabilities > true, axis=1), probabilities.shape[1])
        predicted = np.where(answered, np.argmax(sure, axis=1), NO_ANSWER)
        confidence = np.where(answered, probabilities.max(axis=1), np.nan)
        agreement = None
        if SOFT_LABEL in source.features:
            agreement = np.where(answered, targets[np.arange(len(labels)), predicted], 0)
        table = Predictions(labels, predicted, confidence, rank, index, agreement)
        right, name = table.right, "accuracy"
        by_class = ensemble.activation == "sigmoid"
        losses = _binary(sure, targets) if by_class else -(targets * np.log(sure)).sum(axis=1)
    classes = len(ensemble.class_names)
    return Result(
        {
            "loss": float(np.mean(losses)),
            name: float(np.mean(right)),
            **table.metrics(classes),
            "examples": len(labels),
        },
        table,
    )


def _targets(batch: Batch, classes: int) -> Float[np.ndarray, "n classes"]:
    """Return the soft labels of a batch, or ones at its labels."""
    labels = batch["label"]
    return batch.get(SOFT_LABEL, labels if labels.ndim == 2 else np.eye(classes)[labels])


def _binary(
    sure: Float[np.ndarray, "n classes"], targets: Float[np.ndarray, "n classes"]
) -> Float[np.ndarray, " n"]:
    """Return the mean cross-entropy over independent classes."""
    absent = np.log(np.maximum(1 - sure, _LEAST))
    return -(targets * np.log(sure) + (1 - targets) * absent).mean(axis=1)
