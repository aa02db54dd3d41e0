"""Tokens that are left after blocks of a ViT that reduces them, drawn on the image.

    draw_tokens(vit_jax.load("runs/digits", tome_r=2), "seven.png")

Patches that were merged into one token (ToMe) have the mean of their colours, without a line
between them. Patches that did not go on by themselves (EViT) are dark.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from jaxtyping import Float, Int, UInt8
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from vit_jax.analysis.attention.overlays import MOST_IMAGES
from vit_jax.analysis.figures import show_image
from vit_jax.data.images.decoding import ImageLike
from vit_jax.data.images.preprocess import Preprocessing
from vit_jax.errors import UserError
from vit_jax.inference.predictor import Predictor
from vit_jax.models.tokens.fields import reduces_tokens

_MOST_BLOCKS = 4  # drawn: the last one, and others at equal distances
_DARK = 0.25  # of the brightness


def draw_tokens(classifier: Predictor, images: Sequence[ImageLike]) -> Figure:
    """Draw images and the tokens that are left after some blocks; one row for each image.

    Args:
        classifier: with a model that has `tome_r` or `keep_ratio`.
        images: as a `Predictor` takes them; at most 16.

    Raises:
        UserError: the model keeps all tokens, there are too many images, or one cannot be read.
    """
    if len(images) > MOST_IMAGES:
        raise UserError(f"{len(images)} images are too many for one figure; give at most 16")
    preprocessing = classifier.preprocessing
    seen = np.stack([preprocessing(preprocessing.decode(one)) for one in images])
    sources, grid = token_sources(classifier.model, classifier.variables, preprocessing, seen)
    chosen = shown_blocks(sorted(sources))
    columns = 1 + len(chosen)
    figure = Figure(figsize=(2.2 * columns, 2.4 * len(seen)), layout="constrained")
    panels = figure.subplots(len(seen), columns, squeeze=False)
    for row, image in zip(panels, seen, strict=True):
        show_image(row[0], image)
    panels[0, 0].set_title("image")
    prefix, merged = classifier.model.prefix, classifier.model.keep_ratio == 1.0
    for column, block in enumerate(chosen, start=1):
        for i, image in enumerate(seen):
            groups = sources[block][i, prefix:].reshape(grid)
            show_image(panels[i, column], painted(image, groups, merged))
            _draw_lines(panels[i, column], groups, image.shape[:2])
        left = sources[block].max() + 1
        panels[0, column].set_title(f"after block {block}: {left} tokens", fontsize="medium")
    return figure


def token_sources(
    model: nn.Module,
    variables: Mapping[str, Any],
    preprocessing: Preprocessing,
    images: UInt8[np.ndarray, "batch h w c"],
) -> tuple[dict[int, Int[np.ndarray, "batch entered"]], tuple[int, int]]:
    """Return where every token is after each block, see `TokenMap`, and the grid of patches.

    Raises UserError for a model that keeps all tokens.
    """
    if not reduces_tokens(model):
        raise UserError(
            f"{type(model).__name__} keeps all tokens, so there is nothing to draw; load the run "
            "with fewer tokens, such as tome_r=2 or keep_ratio=0.7 (--field keep_ratio=0.7)"
        )

    @jax.jit
    def run(variables, images):
        features, sown = model.apply(
            variables, preprocessing.normalize(images), method="features", mutable="intermediates"
        )
        return [
            sown["intermediates"][f"blocks_{i}"]["source"][0] for i in range(model.depth)
        ], features

    sources, features = run(variables, images)
    return {i: np.asarray(one) for i, one in enumerate(sources)}, features.grid


def shown_blocks(blocks: Sequence[int]) -> list[int]:
    """Return the blocks that are drawn: the last, and others at equal distances before it."""
    count = min(len(blocks), _MOST_BLOCKS)
    return [blocks[len(blocks) * (i + 1) // count - 1] for i in range(count)]


def painted(
    image: UInt8[np.ndarray, "height width channels"],
    groups: Int[np.ndarray, "rows columns"],
    merged: bool,
) -> UInt8[np.ndarray, "height width channels"]:
    """Return the image with the patches of a token in their mean colour, or dark.

    groups: the token of every patch; -1: dropped. merged: whether patches of one token are alike,
    and are not what was left over.
    """
    rows, columns = (
        np.arange(pixels) * count // pixels
        for pixels, count in zip(image.shape[:2], groups.shape, strict=True)
    )
    of_pixels = groups[rows][:, columns]
    result = image.astype(np.float32)
    for token, count in zip(*np.unique(groups, return_counts=True), strict=True):
        inside = of_pixels == token
        if merged and count > 1:
            result[inside] = result[inside].mean(axis=0)
        elif token < 0 or count > 1:
            result[inside] *= _DARK
    return result.round().astype(np.uint8)


def _draw_lines(
    panel: Axes, groups: Int[np.ndarray, "rows columns"], size: tuple[int, int]
) -> None:
    """Draw lines between neighbouring patches of different tokens."""
    height, width = (pixels / n for pixels, n in zip(size, groups.shape, strict=True))
    lines: list[Float[np.ndarray, "2 2"]] = []
    for row, column in np.argwhere(groups[:, 1:] != groups[:, :-1]):
        x = (column + 1) * width
        lines.append(np.array([[x, row * height], [x, (row + 1) * height]]) - 0.5)
    for row, column in np.argwhere(groups[1:] != groups[:-1]):
        y = (row + 1) * height
        lines.append(np.array([[column * width, y], [(column + 1) * width, y]]) - 0.5)
    panel.add_collection(LineCollection(lines, colors="tab:orange", linewidths=0.8))
