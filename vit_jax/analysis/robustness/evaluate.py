"""Evaluation of models under image perturbations.

    candidates = [open_candidate("runs/vit"), open_candidate("runs/resnet")]
    results = measure(candidates, only=["corruptions"])
    results[0].clean.accuracy
    results[0].accuracies("gaussian_noise")      # at severities 1 to 5
    corruption_errors(results[1], results[0])    # mCE and relative mCE with the first as base

- Images are changed after resizing and cropping, on the uint8 pixels of the model's own
  preprocessing, as in ImageNet-C.
- Random numbers depend on the seed, the test and the image's number, so all models with the same
  image size see the same changed images, in any batches.
- An image is read and preprocessed once and changed in threads; the next change is computed while
  the models process the last one.
"""

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt8

from vit_jax.analysis.robustness.candidates import (
    Candidate,
    Score,
    Scorer,
    check_same,
    choose_images,
)
from vit_jax.analysis.robustness.suite import CLEAN, Options, Perturbation, make_suite
from vit_jax.data import DecodeErrors, Preprocessing, Source
from vit_jax.errors import DecodeError, UserError

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Result:
    """Robustness results of one model.

    name: the candidate's. tests: the tests that were run. size: of its input images.
    clean: score on unchanged images. scores: by name of a test, one for each of its levels.
    """

    name: str
    size: tuple[int, int]
    tests: tuple[Perturbation, ...]
    clean: Score
    scores: Mapping[str, tuple[Score, ...]]

    def accuracies(self, test: str) -> Float[np.ndarray, " levels"]:
        """Return the accuracy at each level of a test."""
        return np.array([score.accuracy for score in self.scores[test]])

    def of_kind(self, kind: str) -> list[Perturbation]:
        """Return the tests of a kind."""
        return [test for test in self.tests if test.kind == kind]


class CorruptionErrors(NamedTuple):
    """Errors under corruption; see `corruption_errors`. None: undefined."""

    mean_error: float
    mean_rise: float
    mce: float | None
    relative_mce: float | None


def measure(
    candidates: Sequence[Candidate],
    *,
    only: Sequence[str] = (),
    options: Options | None = None,
    count: int = 0,
    batch_size: int = 64,
    progress: Progress = lambda done, total: None,
    bad: DecodeErrors | None = None,
) -> list[Result]:
    """Test models on the same images.

    Args:
        candidates: their sources have the same images, with labels numbered for each model.
        only, options: of `make_suite`.
        count: number of images, drawn by the seed; 0: all.
        batch_size: results depend on it only by rounding.
        progress: called with the number of images done and the total, over all image sizes.
        bad: records images that cannot be read, which are skipped.

    Returns:
        A result for each candidate, in their order.

    Raises:
        UserError: the sources differ, a test is unknown, or no image can be read.
    """
    options = options or Options()
    first = candidates[0].source
    for other in candidates[1:]:
        check_same(first, other.source)
    numbers = choose_images(first, count, options.seed)
    groups: dict[Preprocessing, list[int]] = {}
    for place, candidate in enumerate(candidates):
        groups.setdefault(candidate.preprocessing, []).append(place)
    suites = {
        preprocessing: make_suite(preprocessing.size, only, options) for preprocessing in groups
    }
    bad = bad or DecodeErrors()
    results: dict[int, Result] = {}
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for turn, (preprocessing, places) in enumerate(groups.items()):
            work = _Work(threads, suites[preprocessing], options, batch_size)

            def step(done: int, before: int = turn * len(numbers)) -> None:
                progress(before + done, len(groups) * len(numbers))

            group = [candidates[place] for place in places]
            results.update(
                zip(places, work.run(group, preprocessing, numbers, bad, step), strict=True)
            )
    return [results[place] for place in range(len(candidates))]


def corruption_errors(result: Result, base: Result | None = None) -> CorruptionErrors | None:
    """Compute the errors under corruptions (Hendrycks & Dietterich 2019, section 4).

    mean_error: over corruptions and severities. mean_rise: minus the error on clean images.
    mce: for each corruption the sum of errors over severities divided by that of `base`, averaged
        over corruptions; the paper's base is AlexNet. 1 equals the base, lower is better.
    relative_mce: the same for the increase of the error over that on clean images.

    Returns:
        None if no corruption was tested. `mce` and `relative_mce` are None without a base, or
        if one of its sums is not above 0.
    """
    names = [test.name for test in result.of_kind("corruptions")]
    if not names:
        return None
    errors = _errors(result, names)
    rise = errors - result.clean.error
    mce = relative = None
    if base is not None:
        base_errors = _errors(base, names)
        mce = _mean_ratio(errors, base_errors)
        relative = _mean_ratio(rise, base_errors - base.clean.error)
    return CorruptionErrors(float(errors.mean()), float(rise.mean()), mce, relative)


def _errors(result: Result, names: Sequence[str]) -> Float[np.ndarray, "corruptions severities"]:
    return np.array([1 - result.accuracies(name) for name in names])


def _mean_ratio(errors: np.ndarray, base: np.ndarray) -> float | None:
    sums, base_sums = errors.sum(axis=1), base.sum(axis=1)
    return float((sums / base_sums).mean()) if (base_sums > 0).all() else None


@dataclasses.dataclass(frozen=True)
class _Work:
    """Tests of models with the same input pixels."""

    threads: ThreadPoolExecutor
    suite: tuple[Perturbation, ...]
    options: Options
    batch_size: int

    def run(
        self,
        group: Sequence[Candidate],
        preprocessing: Preprocessing,
        numbers: Int[np.ndarray, " images"],
        bad: DecodeErrors,
        step: Callable[[int], None],
    ) -> list[Result]:
        variants = [(CLEAN, 0.0), *((t.name, level) for t in self.suite for level in t.levels)]
        tallies = [dict.fromkeys(variants, Score()) for _ in group]
        models = [Scorer(candidate, self.batch_size) for candidate in group]
        step(0)
        for start in range(0, len(numbers), self.batch_size):
            block = numbers[start : start + self.batch_size]
            images, read = self._read(group[0].source, preprocessing, block, bad)
            if len(read):
                for variant, place, score in self._tested(models, images, read):
                    tallies[place][variant] = tallies[place][variant].plus(score)
            step(start + len(block))
        if not tallies[0][CLEAN, 0.0].images:
            raise UserError(f"no image of {group[0].source.name} can be read")
        return [
            Result(
                candidate.name,
                preprocessing.size,
                self.suite,
                tally[CLEAN, 0.0],
                {t.name: tuple(tally[t.name, level] for level in t.levels) for t in self.suite},
            )
            for candidate, tally in zip(group, tallies, strict=True)
        ]

    def _read(
        self, source: Source, preprocessing: Preprocessing, numbers: np.ndarray, bad: DecodeErrors
    ) -> tuple[UInt8[np.ndarray, "images h w c"], Int[np.ndarray, " images"]]:
        """Return the readable images, preprocessed, and their numbers."""

        def one(number: int) -> np.ndarray | DecodeError:
            try:
                return preprocessing(source[int(number)]["image"])
            except DecodeError as error:
                return error

        found = list(self.threads.map(one, numbers))
        unreadable = [one for one in found if isinstance(one, DecodeError)]
        if bad.strict and unreadable:
            raise unreadable[0]
        bad.add(unreadable)
        there = np.array([not isinstance(one, DecodeError) for one in found])
        images = [one for one in found if not isinstance(one, DecodeError)]
        return np.array(images, np.uint8), numbers[there]

    def _tested(
        self, models: Sequence["Scorer"], images: np.ndarray, numbers: np.ndarray
    ) -> Iterator[tuple[tuple[str, float], int, Score]]:
        """Score each model on each change of some images."""
        clean = itertools.repeat(images, 1)
        changes = [(t, level) for t in self.suite if t.change for level in t.levels]
        variants = [(CLEAN, 0.0), *((t.name, level) for t, level in changes)]
        changed = itertools.chain(clean, self._changed(changes, images, numbers))
        for variant, changed_images in zip(variants, changed, strict=True):
            for place, model in enumerate(models):
                yield variant, place, model.score(changed_images, numbers)
        for test in self.suite:
            if test.attack:
                for level, (place, model) in itertools.product(test.levels, enumerate(models)):
                    attacked = model.attacked(
                        test.attack, level, images, numbers, self.options.seed
                    )
                    yield (test.name, level), place, model.score(attacked, numbers)

    def _changed(
        self,
        changes: Sequence[tuple[Perturbation, float]],
        images: np.ndarray,
        numbers: np.ndarray,
    ) -> Iterator[np.ndarray]:
        """Yield the images under each change; the next are computed while the models run."""
        seed, workers = self.options.seed, os.cpu_count() or 1

        def some(test: Perturbation, level: float, places: np.ndarray) -> list[np.ndarray]:
            return [test.apply(images[i], level, seed, int(numbers[i])) for i in places]

        waiting: list[list[Future]] = []
        for test, level in [*changes, (None, 0.0)]:
            if test is not None:
                parts = np.array_split(np.arange(len(images)), min(workers, len(images)))
                waiting.append([self.threads.submit(some, test, level, part) for part in parts])
            if len(waiting) == 2 or (test is None and waiting):
                parts = waiting.pop(0)
                yield np.stack([image for part in parts for image in part.result()])
