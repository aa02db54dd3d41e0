"""Figures of a model's weights and features, for the command `inspect`.

    subject = open_subject("runs/digits")
    for name, figure in draw("positions", subject).figures.items(): ...

A part that a model lacks, or without images, raises `NotThere` with the reason.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int, UInt8
from matplotlib.figure import Figure

from vit_jax.analysis.receptive_field.measure import (
    effective_receptive_fields,
    extent,
    layer_names,
    layer_steps,
    region,
)
from vit_jax.analysis.representations.features import check_features, sample
from vit_jax.analysis.weights_view.plots import (
    draw_biases,
    draw_features,
    draw_filters,
    draw_neighbours,
    draw_positions,
    draw_receptive_fields,
    some_of,
)
from vit_jax.analysis.weights_view.tables import (
    bias_tables,
    first_kernel,
    patch_filters,
    projections,
    vector_tables,
)
from vit_jax.data import Preprocessing, Source
from vit_jax.errors import DecodeError, UserError, nearest
from vit_jax.evaluation.knn import nearest_neighbours
from vit_jax.inference import Classifier, load_model
from vit_jax.models.tokens.fields import reduces_tokens
from vit_jax.training.open_run import open_run

_QUERIES, _NEIGHBOURS = 6, 6
_FIELD_IMAGES = 32  # enough for a mean; gradients cost some forward passes for each layer
_MOST_LAYERS = 6


class NotThere(UserError):
    """Raised if a model lacks a part of a figure, or there are no data for it."""


class Samples(NamedTuple):
    """Preprocessed images.

    images: uint8. labels: class indices; None without one label for each image. names: of classes.
    total: number of available images.
    """

    images: UInt8[np.ndarray, "images height width channels"]
    labels: Int[np.ndarray, " images"] | None
    names: tuple[str, ...]
    total: int


@dataclass
class Subject:
    """Model under inspection.

    name: for titles. images: None if there are none; `why_none` then has the reason. seed: of
    random samples. beside: other models by name, each with images of its size, for a comparison
    of receptive fields.
    """

    classifier: Classifier
    name: str
    samples: Samples | None = None
    why_none: str = "there are no images"
    seed: int = 0
    beside: dict[str, tuple[Classifier, Samples]] = field(default_factory=dict)

    @functools.cached_property
    def features(self) -> Float[np.ndarray, "images width"]:
        """Return the pooled features of the images. Raises NotThere if there are none."""
        return pooled_features(self.classifier, self.need_samples().images)

    def need_samples(self) -> Samples:
        """Return the images. Raises NotThere if there are none."""
        if self.samples is None:
            raise NotThere(self.why_none)
        return self.samples


class Drawn(NamedTuple):
    """Drawn figures by file name, and a sentence with their main numbers."""

    figures: dict[str, Figure]
    sentence: str


def open_subject(
    run: str,
    checkpoint: int | str = "last",
    *,
    raw: bool = False,
    dataset: str = "",
    split: str = "test",
    count: int = 500,
    seed: int = 0,
    beside: str = "",
) -> Subject:
    """Open a run with sample images.

    Args:
        run: its folder. Converted weights have no data, and therefore no images without
            `dataset`; the same holds for a run whose data are missing.
        checkpoint, raw: as in `vit_jax.load`.
        dataset, split: as in `open_run`.
        count: number of images, drawn by `seed`.
        beside: another run, for a comparison of receptive fields.

    Raises:
        UserError: unknown run, checkpoint, split or `dataset`.
    """
    names = [Path(path).resolve().name for path in (run, beside) if path]
    if len(set(names)) < len(names):  # runs with the same name in two folders
        names = [run, beside]
    subject = Subject(load_model(run, checkpoint, raw=raw), names[0], seed=seed)
    other = load_model(beside, raw=raw) if beside else None
    try:
        reopened = open_run(run, dataset, split)
    except UserError as error:
        if dataset:
            raise
        subject.why_none = str(error)
        return subject
    source = reopened.source(split)
    subject.samples = read_images(source, subject.classifier.preprocessing, count, seed)
    if other:
        theirs = read_images(source, other.preprocessing, count, seed)
        subject.beside[names[1]] = (other, theirs)
    return subject


def read_parts(text: str) -> list[str]:
    """Parse comma-separated parts; return all for an empty text. UserError if unknown."""
    parts = [part.strip() for part in text.split(",")] if text else list(PARTS)
    for part in parts:
        if part not in PARTS:
            hint = nearest(part, PARTS) or f"; use some of {', '.join(PARTS)}"
            raise UserError(f"there is no part {part!r}{hint}")
    return parts


def read_images(source: Source, preprocessing: Preprocessing, count: int, seed: int = 0) -> Samples:
    """Return images of a source drawn by `sample`; damaged ones are skipped.

    Raises UserError if none can be read.
    """
    chosen, images, labels = sample(source, count, seed), [], []
    for index in range(len(chosen)):
        try:
            example = chosen[index]
        except DecodeError:
            continue
        images.append(preprocessing(example["image"]))
        labels.append(example.get("label"))
    if not images:
        raise UserError(f"no image of {source.name} {source.split} can be read")
    has_classes = source.has_labels and not source.multi_label
    classes = np.array(labels) if has_classes else None
    return Samples(np.stack(images), classes, source.class_names, len(source))


def pooled_features(
    classifier: Classifier, images: UInt8[np.ndarray, "images h w c"], batch_size: int = 64
) -> Float[np.ndarray, "images width"]:
    """Return the input of the head for each image; without pooling, the mean of the tokens."""
    check_features(classifier.model)

    @jax.jit
    def forward(variables, images):
        images = classifier.preprocessing.normalize(images)
        pooled = classifier.model.apply(variables, images, method="features").pooled
        return pooled if pooled.ndim == 2 else pooled.mean(axis=1)

    batches = [
        np.asarray(forward(classifier.variables, images[start : start + batch_size]), np.float32)
        for start in range(0, len(images), batch_size)
    ]
    return np.concatenate(batches)


def draw(part: str, subject: Subject) -> Drawn:
    """Draw the figures of a part. Raises NotThere if the model or the data lack it."""
    return PARTS[part](subject)


def parts_of(subject: Subject) -> list[str]:
    """Return the parts that can be drawn for this model and these images."""
    model, variables = subject.classifier.model, subject.classifier.variables
    has = {
        "positions": bool(vector_tables(model, variables) or bias_tables(model, variables)),
        "filters": _kernel(subject) is not None,
        "features": subject.samples is not None and subject.samples.labels is not None,
        "receptive_fields": subject.samples is not None,
    }
    has["neighbours"] = has["features"]
    return [part for part in PARTS if has[part]]


def _draw_positions(subject: Subject) -> Drawn:
    model, variables = subject.classifier.model, subject.classifier.variables
    vectors, biases = vector_tables(model, variables), bias_tables(model, variables)
    if not vectors and not biases:
        kind = getattr(model, "positions", None)
        reason = {
            "rotary": "rotary positions rotate queries and keys by fixed angles; there is no table",
            "none": "the model has no positions",
        }
        raise NotThere(reason.get(kind, f"{type(model).__name__} has no position tables"))
    figures = {}
    for number, (name, table) in enumerate(vectors.items()):
        suffix = f"_{number}" if len(vectors) > 1 else ""
        figures[f"positions{suffix}"] = draw_positions(table, f"{subject.name}: {name}")
    if biases:
        figures["position_biases"] = draw_biases(biases, f"{subject.name}: position biases")
    what = [f"{name} {t.grid[0]} x {t.grid[1]}" for name, t in vectors.items()]
    what += [f"biases of {len(biases)} blocks"] * bool(biases)
    return Drawn(figures, ", ".join(what))


def _draw_filters(subject: Subject) -> Drawn:
    kernel = _kernel(subject)
    if kernel is None:
        raise NotThere(f"{type(subject.classifier.model).__name__} has no first convolution")
    explained = patch_filters(kernel, 10).explained
    sentence = (
        f"{kernel.shape[-1]} filters; {len(explained)} principal components explain "
        f"{100 * explained.sum():.1f} % of their variance"
    )
    return Drawn({"filters": draw_filters(kernel, subject.name)}, sentence)


def _draw_features(subject: Subject) -> Drawn:
    samples, labels = _labelled(subject)
    planes = projections(subject.features, subject.seed)
    title = f"{subject.name}: pooled features of {len(labels):,} of {samples.total:,} images"
    shares = " and ".join(f"{100 * share:.1f} %" for share in planes["PCA"].explained)
    return Drawn(
        {"features": draw_features(planes, labels, samples.names, title)},
        f"{len(labels):,} images by {', '.join(planes)}; the axes of PCA explain {shares}",
    )


def _draw_neighbours(subject: Subject) -> Drawn:
    samples, labels = _labelled(subject)
    if len(labels) < 2:
        raise NotThere("a single image has no neighbours")
    found = nearest_neighbours(subject.features, count=min(_NEIGHBOURS, len(labels) - 1))
    same = 100 * (labels[found.numbers[:, 0]] == labels).mean()
    queries = _of_different_classes(labels, subject.seed)[:_QUERIES]
    sentence = f"the nearest neighbour has the same class in {same:.1f} % of {len(labels):,} images"
    figure = draw_neighbours(
        samples.images,
        queries,
        found,
        labels,
        samples.names,
        f"{subject.name}: {sentence}",
    )
    return Drawn({"neighbours": figure}, sentence)


def _draw_receptive_fields(subject: Subject) -> Drawn:
    ours = {subject.name: (subject.classifier, subject.need_samples())}
    fields, regions, sentences = {}, {}, []
    for name, (classifier, samples) in {**ours, **subject.beside}.items():
        rng = np.random.default_rng(subject.seed)
        chosen = rng.permutation(len(samples.images))[:_FIELD_IMAGES]
        images = classifier.preprocessing.normalize(samples.images[chosen])
        model, variables = classifier.model, classifier.variables
        if reduces_tokens(model):
            raise NotThere("its blocks leave fewer tokens than a grid")
        layers = some_of(layer_names(model, variables, images), _MOST_LAYERS)
        fields[name] = effective_receptive_fields(
            model, variables, images, layers, seed=subject.seed
        )
        known = layer_steps(model, images.shape[1:3])
        regions[name] = {n: region(model, n, images.shape[1:3]) for n in layers if n in known}
        first, last = (extent(fields[name][layer]).half_side for layer in (layers[0], layers[-1]))
        sentences.append(
            f"{name} has half of its gradient within {first:.0f} px in {layers[0]} and within "
            f"{last:.0f} px in {layers[-1]}"
        )
    figure = draw_receptive_fields(fields, regions)
    return Drawn({"receptive_fields": figure}, "; ".join(sentences))


PARTS: dict[str, Callable[[Subject], Drawn]] = {
    "positions": _draw_positions,
    "filters": _draw_filters,
    "features": _draw_features,
    "neighbours": _draw_neighbours,
    "receptive_fields": _draw_receptive_fields,
}


def _labelled(subject: Subject) -> tuple[Samples, Int[np.ndarray, " images"]]:
    """Return the images and their classes. Raises NotThere if an image may have several."""
    samples = subject.need_samples()
    if samples.labels is None:
        raise NotThere("the images have several labels or none, so there is no class for a colour")
    return samples, samples.labels


def _of_different_classes(
    labels: Int[np.ndarray, " images"], seed: int
) -> Int[np.ndarray, " images"]:
    """Return all images in random order, but first one of each class, then a second, ..."""
    order = np.random.default_rng(seed).permutation(len(labels))
    of_class = [(labels[order[:i]] == labels[order[i]]).sum() for i in range(len(order))]
    return order[np.argsort(of_class, kind="stable")]


def _kernel(subject: Subject) -> Float[np.ndarray, "height width channels out"] | None:
    try:
        return first_kernel(subject.classifier.model, subject.classifier.params)
    except UserError:
        return None
