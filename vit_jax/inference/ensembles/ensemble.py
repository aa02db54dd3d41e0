"""Ensemble: the mean answer of several classifiers, of several views of an image, or of both.

ensemble = load_ensemble(["runs/a", "runs/b"], tta="flip")
ensemble.predict("seven.png")
"""

import itertools
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt8

from vit_jax.data.images.decoding import ImageLike
from vit_jax.data.images.preprocess import Preprocessing
from vit_jax.data.labels import number_classes
from vit_jax.data.paths import as_text, same_form, some_of
from vit_jax.errors import UserError
from vit_jax.inference.classifier import Classifier, ImageResult
from vit_jax.inference.ensembles.views import views
from vit_jax.inference.loading import load_classifier
from vit_jax.inference.predictor import BATCH_SIZE, Outputs
from vit_jax.runs import RunDir, run_folders
from vit_jax.runs.temperature import stored_temperature

PROBABILITIES, LOGITS = "probabilities", "logits"
AVERAGES = (PROBABILITIES, LOGITS)


@dataclass(frozen=True, eq=False)
class Member:
    """A classifier of an ensemble.

    columns: its class for each class of the ensemble. weight: its share of the mean. temperature:
    by which its logits are divided.
    """

    classifier: Classifier
    columns: Int[np.ndarray, " classes"]
    weight: float
    temperature: float = 1.0

    def scaled(self, logits: Float[np.ndarray, "n outputs"]) -> Float[np.ndarray, "n classes"]:
        """Return logits of all classes of the ensemble, divided by the temperature.

        A single output of two classes is the logit of the second; that of the first is 0.
        """
        logits = np.asarray(logits, np.float64)
        if logits.shape[-1] == 1 and len(self.columns) == 2:
            logits = np.concatenate([np.zeros_like(logits), logits], axis=-1)
        return logits[..., self.columns] / self.temperature


class Ensemble(Classifier):
    """Classifiers of the same classes, whose answers are averaged.

    The class names, their order and the preprocessing in descriptions are those of the first.

    classifiers: the members. names: of them, for messages. weights: of the members, of any sum;
    equal by default. average: "probabilities" or "logits", of which the mean is taken.
    temperatures: by which the logits of each member are divided. tta: views of each image, see
    `views`.

    Raises:
        UserError: members of different classes or kinds of answers, or invalid weights.
    """

    def __init__(
        self,
        classifiers: Sequence[Classifier],
        names: Sequence[str] = (),
        *,
        weights: Sequence[float] = (),
        average: str = PROBABILITIES,
        temperatures: Sequence[float] = (),
        tta: str = "",
    ):
        if not classifiers:
            raise UserError("an ensemble needs at least one classifier")
        names = names or [f"classifier {number}" for number in range(1, len(classifiers) + 1)]
        check_average(average)
        first = classifiers[0]
        self.class_names, self.preprocessing = first.class_names, first.preprocessing
        self.step, self.average, self.names = first.step, average, tuple(names)
        self.views = views(tta)
        kinds = {_activation(one): name for one, name in zip(classifiers, names, strict=True)}
        if len(kinds) > 1:
            (one, name), (other, another) = list(kinds.items())[:2]
            raise UserError(
                f"{name} gives probabilities by {one} and {another} by {other}, so they cannot be "
                "averaged; name models of one kind"
            )
        self.activation = _activation(first)
        if tta and any(one.preprocessing.max_tokens for one in classifiers):
            raise UserError("--tta needs images of one size, and data.max_tokens keeps their ratio")
        shares = _shares(weights, len(classifiers))
        temperatures = temperatures or [1.0] * len(classifiers)
        self.members = tuple(
            Member(one, _columns(self.class_names, one, names[0], name), share, temperature)
            for one, name, share, temperature in zip(
                classifiers, names, shares, temperatures, strict=True
            )
        )

    @property
    def groups(self) -> dict[Preprocessing, list[Member]]:
        """Return the members by their preprocessing, so that each image is read once for each."""
        found: dict[Preprocessing, list[Member]] = {}
        for member in self.members:
            found.setdefault(member.classifier.preprocessing, []).append(member)
        return found

    def iter_predict(
        self, images: ImageLike | Iterable[ImageLike], batch_size: int = BATCH_SIZE
    ) -> Iterator[ImageResult]:
        """Yield the mean probabilities of any number of images; see `Classifier.iter_predict`."""
        groups = list(self.groups.values())
        copies = [images] * len(groups)
        if isinstance(images, Iterator):
            copies = list(itertools.tee(images, len(groups)))
        streams = [
            group[0].classifier._batches(copy, batch_size, self._runner(group))
            for group, copy in zip(groups, copies, strict=True)
        ]
        for found in zip(*streams, strict=True):
            batch = found[0][0]
            rows = self.mean([outputs for _, outputs in found])
            for name, row, error in zip(batch.names, rows, batch.errors, strict=True):
                if error is None and not np.isfinite(row).all():
                    error = UserError(
                        f"{as_text(name)}: the outputs of a model are not finite numbers; its "
                        "parameters are damaged, or its precision is too low"
                    )
                yield ImageResult(name, None if error else row.astype(np.float32), error)

    def run_group(
        self, group: Sequence[Member], images: UInt8[np.ndarray, "batch h w c"]
    ) -> Outputs:
        """Return the logits of members of one preprocessing for each view, by their numbers."""
        found: Outputs = {}
        for view_number, view in enumerate(self.views):
            seen: Any = view(images)
            for member in group:
                number = self.members.index(member)
                found[f"{number}/{view_number}"] = member.classifier.logits(seen)
        return found

    def mean(self, outputs: Sequence[Outputs]) -> Float[np.ndarray, "n classes"]:
        """Return the mean probabilities from the logits of `run_group` of all groups.

        Rows of logits that are not finite are NaN.
        """
        total: Any = 0.0
        for name, logits in itertools.chain(*(one.items() for one in outputs)):
            member = self.members[int(name.partition("/")[0])]
            values = member.scaled(logits)
            values = np.where(np.isfinite(values).all(axis=-1, keepdims=True), values, np.nan)
            if self.average == PROBABILITIES:
                values = self._to_probabilities(values, np)
            total = total + member.weight / len(self.views) * values
        return total if self.average == PROBABILITIES else self._to_probabilities(total, np)

    def of_member(self, number: int, outputs: Sequence[Outputs]) -> Float[np.ndarray, "n classes"]:
        """Return the probabilities of one member for the image itself, without other views."""
        logits = next(one[f"{number}/0"] for one in outputs if f"{number}/0" in one)
        return self._to_probabilities(self.members[number].scaled(logits), np)

    def _runner(self, group: Sequence[Member]):
        return lambda images: self.run_group(group, images)

    def logits(self, images):
        """Raise UserError: an ensemble has the logits of its members only."""
        raise UserError(
            "an ensemble has no logits of its own; use `predict`, or those of its `members`"
        )


def load_ensemble(
    paths: Sequence[str | os.PathLike],
    checkpoint: int | str = "last",
    *,
    raw: bool = False,
    weights: Sequence[float] = (),
    average: str = PROBABILITIES,
    tta: str = "",
    calibrated: bool = False,
    **fields: Any,
) -> Ensemble:
    """Load run folders as one classifier, whose probabilities are the mean of theirs.

    Args:
        paths: run folders; a folder of runs stands for all runs in it.
        checkpoint, raw, fields: as for `vit_jax.load`.
        weights: of the runs, of any sum; equal by default.
        average: "probabilities" or "logits".
        tta: views of each image: "flip", "crops" and "scales", separated by commas.
        calibrated: whether the logits of each run are divided by its fitted temperature.

    Raises:
        UserError: a run is missing or no classifier, has other classes than the first, or has no
            temperature.
    """
    runs = [one for path in paths for one in runs_in(path)]
    temperatures = [_temperature(run) if calibrated else 1.0 for run in runs]
    return Ensemble(
        [load_classifier(run, checkpoint, raw=raw, **fields) for run in runs],
        runs,
        weights=weights,
        average=average,
        temperatures=temperatures,
        tta=tta,
    )


def check_average(average: str) -> None:
    """Raise UserError for an unknown kind of mean."""
    if average not in AVERAGES:
        raise UserError(f"--average={average} is invalid; use {' or '.join(AVERAGES)}")


def runs_in(path: str | os.PathLike) -> list[str]:
    """Return a run folder, or all run folders in a folder, by name."""
    if RunDir(path).is_run():
        return [os.fspath(path)]
    return [str(folder) for folder in run_folders(path)] or [os.fspath(path)]


def _temperature(run: str) -> float:
    found = stored_temperature(RunDir(run))
    if found is None:
        raise UserError(
            f"{run} has no fitted temperature; fit one with python -m vit_jax calibrate {run}"
        )
    return found


def _activation(classifier: Classifier) -> str:
    """Return how logits become probabilities; those of a single output become a softmax of two."""
    single = classifier.activation == "sigmoid" and len(classifier.class_names) == 2
    if single and classifier._traced("logits").shape[-1] == 1:
        return "softmax"
    return classifier.activation


def _columns(
    names: Sequence[str], classifier: Classifier, first: str, name: str
) -> Int[np.ndarray, " classes"]:
    """Return the class of a member for each class of the ensemble; UserError if they differ."""
    own = classifier.class_names
    if sorted(map(same_form, names)) != sorted(map(same_form, own)):
        mine, theirs = ({same_form(one) for one in of} for of in (names, own))
        apart = sorted(mine ^ theirs)
        raise UserError(
            f"{first} and {name} have different classes ({some_of(apart, 6)} only in one of them), "
            "so they cannot be averaged; name runs of the same classes"
        )
    numbers, _ = number_classes(names, own)
    return np.array([numbers[one] for one in names])


def _shares(weights: Sequence[float], count: int) -> list[float]:
    if not weights:
        return [1 / count] * count
    if len(weights) != count:
        raise UserError(f"{len(weights)} weights for {count} runs; give one weight for each run")
    total = sum(weights)
    if not all(math.isfinite(w) and w >= 0 for w in weights) or total <= 0:
        raise UserError(f"weights {list(weights)} are invalid; use numbers of at least 0")
    return [weight / total for weight in weights]
