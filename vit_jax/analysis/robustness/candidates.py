"""Models in a robustness test: opened from runs, and scored on images.

candidate = open_candidate("runs/digits")
Scorer(candidate, batch_size=64).score(images, numbers)
"""

import dataclasses
import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from vit_jax.analysis.robustness.attacks import class_logits, cross_entropy, fgsm, pgd
from vit_jax.analysis.robustness.suite import Attack
from vit_jax.data import Preprocessing, Source
from vit_jax.data.features import LABEL, check_inputs
from vit_jax.errors import UserError
from vit_jax.inference import Classifier
from vit_jax.inference.loading import load_classifier
from vit_jax.runs import RunDir
from vit_jax.tasks.classification import finite_rows
from vit_jax.training.open_run import open_other, open_run


class Score(NamedTuple):
    """Number of correct images, sum of cross-entropies, and number of images.

    nonfinite: images with logits that are not all finite, which count as wrong.
    """

    right: int = 0
    loss: float = 0.0
    images: int = 0
    nonfinite: int = 0

    @property
    def accuracy(self) -> float:
        return self.right / self.images

    @property
    def error(self) -> float:
        return 1 - self.accuracy

    def plus(self, other: "Score") -> "Score":
        """Return the sum of two scores."""
        return Score(*(a + b for a, b in zip(self, other, strict=True)))


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Model with its test images.

    name: in results. source: images with labels numbered as in the model.
    among: candidate classes for predictions; None: all classes of the model.
    """

    name: str
    classifier: Classifier
    source: Source
    among: tuple[int, ...] | None = None

    @property
    def preprocessing(self) -> Preprocessing:
        """Preprocessing that determines the pixels: without the normalisation on the device."""
        return dataclasses.replace(self.classifier.preprocessing, mean=(0.5,), std=(0.5,))


def open_candidate(
    path: str | os.PathLike,
    dataset: str = "",
    split: str = "test",
    *,
    checkpoint: int | str = "last",
    raw: bool = False,
    only_classes_of_data: bool = False,
    name: str = "",
) -> Candidate:
    """Open a run folder for a robustness test.

    Args:
        path: a run folder.
        dataset: data in place of the run's own, such as `folder:PATH`; its classes are matched by
            name with the model's, and may be a subset.
        split: of the data.
        checkpoint, raw: as for `load`.
        only_classes_of_data: whether predictions are restricted to the classes of the data, as is
            usual for ImageNet-A and ImageNet-R, which have 200 of ImageNet's 1,000.
        name: in results; by default the folder's.

    Raises:
        UserError: unknown run, data or class, or images with several labels.
    """
    folder = RunDir(path)
    if not dataset and folder.is_run() and not folder.config_file.exists():
        raise UserError(f"{path} was not trained here, so it has no data; add a dataset after it")
    source = open_other(path, dataset, split) if dataset else open_run(path).source(split)
    check_inputs({"label": LABEL}, source, wanted_by="a robustness test")
    if source.multi_label:
        raise UserError(
            f"robustness tests need images with exactly one label, but those of {source.name} may "
            "have several"
        )
    if not (source.labels >= 0).any():
        raise UserError(f"{source.name} {split} has no images with a label")
    among = None
    if only_classes_of_data:
        among = tuple(np.unique(source.labels[source.labels >= 0]).tolist())
    name = name or folder.path.resolve().name
    classifier = load_classifier(path, checkpoint, raw=raw)
    if classifier.preprocessing.max_tokens:
        raise UserError(
            f"robustness tests change images of one size, but {path} takes images at their own "
            "aspect ratio (data.max_tokens); test a run with data.max_tokens=0"
        )
    return Candidate(name, classifier, source, among)


def choose_images(source: Source, count: int, seed: int) -> Int[np.ndarray, " images"]:
    """Return the sorted indices of the test images: all with a label, or `count` random ones.

    Args:
        count: number of images; 0: all.
    """
    numbers = np.flatnonzero(source.labels >= 0)
    if not 0 < count < len(numbers):
        return numbers
    return np.sort(np.random.default_rng(seed).choice(numbers, count, replace=False))


def check_same(first: Source, other: Source) -> None:
    """Raise UserError if two sources do not have the same images."""
    same = (first.name, first.split, len(first), first.files) == (
        *(other.name, other.split, len(other), other.files),
    )
    if not same:
        raise UserError(
            f"the runs have different data: {len(first):,} images of {first.name} {first.split} "
            f"and {len(other):,} of {other.name} {other.split}; use one dataset for all of them, "
            "open_candidate(RUN, 'folder:PATH'), or robustness RUN folder:PATH --compare=OTHER_RUN"
        )


class Scorer:
    """Scorer of a candidate's model, compiled for batches of one size."""

    def __init__(self, candidate: Candidate, batch_size: int):
        self._classifier = candidate.classifier
        self._batch_size = batch_size
        self._labels = np.asarray(candidate.source.labels)
        # One object, since each bound method is a new object and would be compiled again.
        self._normalise = self._classifier.preprocessing.normalize_unit
        model, preprocessing = self._classifier.model, self._classifier.preprocessing
        among = candidate.among

        @jax.jit
        def score(variables, images, labels):
            bytes_ = images.dtype == jnp.uint8
            inputs = preprocessing.normalize(images) if bytes_ else self._normalise(images)
            logits = class_logits(model.apply(variables, inputs, train=False))
            losses, finite = cross_entropy(logits, labels), finite_rows(logits)
            if among is not None:
                others = jnp.ones(logits.shape[-1], bool).at[jnp.array(among)].set(False)
                logits = jnp.where(others, -jnp.inf, logits)
            return (logits.argmax(axis=-1) == labels) & finite, losses, ~finite

        self._judge = score

    def score(self, images: np.ndarray, numbers: np.ndarray) -> Score:
        """Score predictions on images, uint8 or floats of 0 to 1."""
        right, losses, nonfinite = self._judge(
            self._classifier.variables, self._padded(images), self._padded(self._labels[numbers])
        )
        count = len(images)
        return Score(
            int(np.asarray(right)[:count].sum()),
            float(np.asarray(losses, np.float64)[:count].sum()),
            count,
            int(np.asarray(nonfinite)[:count].sum()),
        )

    def attacked(
        self, attack: Attack, eps: float, images: np.ndarray, numbers: np.ndarray, seed: int
    ) -> np.ndarray:
        """Return the images under an attack on this model, as floats of 0 to 1.

        images: uint8. seed: of random starts, which also depend on the image's number.
        """
        pixels = self._padded(images) / np.float32(255)
        labels = self._padded(self._labels[numbers])
        arguments = (self._classifier.model, self._classifier.variables, self._normalise)
        if attack.name == "fgsm":
            changed = fgsm(*arguments, pixels, labels, eps, attack.norm)
        else:
            changed = pgd(
                *arguments,
                *(pixels, labels, eps, attack.norm, attack.steps),
                seed=seed,
                numbers=self._padded(numbers),
            )
        return np.asarray(changed)[: len(images)]

    def _padded(self, rows: np.ndarray) -> np.ndarray:
        """Pad rows to the batch size with copies of the first."""
        missing = self._batch_size - len(rows)
        return np.concatenate([rows, np.repeat(rows[:1], missing, axis=0)]) if missing else rows
