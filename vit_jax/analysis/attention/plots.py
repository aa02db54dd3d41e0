"""Mean attention distance and entropy of every head of every layer, in one figure.

The panel on the left is figure 7 (on the right) of the ViT paper: the mean distance between
patches, weighted by attention, over many images. Both local and global heads can spread their
attention over many patches or over few, which the panel on the right shows.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vit_jax.analysis.attention.compute import Attention, compute_attention
from vit_jax.data.images.decoding import ImageLike
from vit_jax.errors import UserError
from vit_jax.inference import Classifier


class Reach(NamedTuple):
    """Mean attention distance and entropy of every layer, averaged over images.

    distances: of every head, in pixels; entropies: of every head, in nats.
    even_distances, even_entropies: of a head with uniform attention to all it sees.
    stages: stage of each layer.
    images: number of images.
    """

    distances: list[Float[np.ndarray, " heads"]]
    entropies: list[Float[np.ndarray, " heads"]]
    even_distances: list[float]
    even_entropies: list[float]
    stages: list[int]
    images: int


def measure_reach(seen: Attention | Iterable[Attention]) -> Reach:
    """Measure distance and entropy of every head, over the images of one batch or several.

    Raises:
        UserError: there are no images, or the weights are not probability distributions.
    """
    sums, images, layers = None, 0, ()
    for one in [seen] if isinstance(seen, Attention) else seen:
        layers, batch = one.layers, len(one.logits)
        measured = [batch * np.stack([layer.mean_distance(), layer.entropy()]) for layer in layers]
        sums = measured if sums is None else [a + b for a, b in zip(sums, measured, strict=True)]
        images += batch
    if not images:
        raise UserError("there are no images to measure attention on; pass at least one")
    even = [layer.uniform() for layer in layers]
    return Reach(
        [both[0] / images for both in sums],
        [both[1] / images for both in sums],
        [float(layer.mean_distance()[0]) for layer in even],
        [float(layer.entropy()[0]) for layer in even],
        [layer.stage for layer in layers],
        images,
    )


def look_in_turn(
    classifier: Classifier, images: Sequence[ImageLike], batch_size: int = 8
) -> Iterator[Attention]:
    """Yield the attention of a classifier in many images, a few at a time to save memory.

    Raises:
        UserError: an image cannot be read, or the model has no attention.
    """
    for start in range(0, len(images), batch_size):
        few = [
            classifier.preprocessing(classifier.preprocessing.decode(one))
            for one in images[start : start + batch_size]
        ]
        normalized = np.asarray(classifier.preprocessing.normalize(np.stack(few)))
        yield compute_attention(classifier.model, classifier.variables, normalized)


def draw_distances(seen: Attention | Iterable[Attention]) -> Figure:
    """Draw mean attention distance and entropy by layer, with a dot for every head.

    Args:
        seen: one batch, or several (`look_in_turn`), averaged over all images.

    Raises:
        UserError: as `measure_reach`.
    """
    reach = measure_reach(seen)
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_dots(left, reach.distances, reach.even_distances, reach.stages)
    left.set(ylabel="mean attention distance (pixels)", title="attention distance of each head")
    _draw_dots(right, reach.entropies, reach.even_entropies, reach.stages)
    right.set(ylabel="mean entropy (nats)", title="attention entropy of each head")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    plural = "image" if reach.images == 1 else "images"
    figure.suptitle(f"every head of every layer, mean over {reach.images:,} {plural}")
    return figure


def _draw_dots(
    panel: Axes,
    by_layer: list[Float[np.ndarray, " heads"]],
    even: list[float],
    stages: list[int],
) -> None:
    """Draw a dot for every head, a short line for uniform attention, and lines between stages."""
    for number, heads in enumerate(by_layer):
        colors = np.linspace(0, 1, len(heads)) if len(heads) > 1 else [0.5]
        # Heads are shifted sideways a little, so that equal ones do not overlap.
        aside = number + 0.3 * (np.linspace(-1, 1, len(heads)) if len(heads) > 1 else np.zeros(1))
        panel.scatter(
            aside, heads, c=colors, cmap="viridis", vmin=0, vmax=1, s=24, label="_", zorder=3
        )
    where = range(len(by_layer))
    left, right = [x - 0.4 for x in where], [x + 0.4 for x in where]
    panel.hlines(even, left, right, colors="grey", linestyles="dashed", label="uniform attention")
    panel.scatter([], [], color="tab:green", s=24, label="a head (dark to light by its number)")
    for number in where[1:]:
        if stages[number] != stages[number - 1]:
            panel.axvline(number - 0.5, color="lightgrey", linewidth=1)
    panel.set_xticks(_ticks(len(by_layer)))
    panel.set_xlabel("layer" if len(set(stages)) == 1 else "layer (lines between stages)")
    panel.set_ylim(0, 1.08 * max(max(even), *(heads.max() for heads in by_layer)))
    panel.grid(alpha=0.3, axis="y")


def _ticks(layers: int) -> range:
    """Return the layer numbers on an axis; for many layers every second, third, ..."""
    return range(0, layers, -(-layers // 16))
