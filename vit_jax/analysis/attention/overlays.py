"""Attention maps and Grad-CAM drawn over images.

A map of attention is in units of uniform attention: 1 is the value of every position if attention
were uniform, so that images, layers and models can be compared.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from flax import linen as nn
from jaxtyping import Float, UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from vit_jax.analysis.attention.compute import (
    Attention,
    Layer,
    compute_attention,
    over_image,
    relevance,
    rollout,
)
from vit_jax.analysis.attention.grad_cam import grad_cam
from vit_jax.analysis.attention.layers import Query
from vit_jax.analysis.figures import short_name, show_image
from vit_jax.data.images.decoding import ImageLike
from vit_jax.errors import UserError, nearest
from vit_jax.inference import Classifier
from vit_jax.models.description.blocks import BlockInfo

GRAD_CAM = "grad-cam"
HEADS = ("mean", "all", "rollout", "relevance", GRAD_CAM)
_UNIFORM = "times uniform attention"
POOL = "pool"  # in place of a layer: the attention pooling
MOST_IMAGES = 16
_MAPS_IN_LINE = 6  # more heads go to the next line
_LONGEST_NAME = 32


class _Maps(NamedTuple):
    """Maps `(images, key_rows, key_columns)` by title, and a description of query and keys.

    unit: of the values. largest: the format of the largest value of a map.
    """

    layer: Layer | BlockInfo
    by_title: dict[str, Float[np.ndarray, "images key_rows key_columns"]]
    asked: str
    unit: str = _UNIFORM
    largest: str = "largest: {:.1f} times uniform"


def draw_attention(
    classifier: Classifier,
    image: ImageLike | Sequence[ImageLike],
    layer: int | str = -1,
    head: str = "mean",
    query: Query = 0,
) -> Figure:
    """Draw input, attention map, overlay and predicted classes; one row per image.

    Args:
        image: as `Classifier.predict` takes one, or several; at most 16.
        layer: from 0, -1 is the last; "pool": the attention pooling of a model that has it. For
            "rollout" in a pyramid it selects the stage; it has no effect on "relevance", which uses
            all layers, and on "rollout" in other models.
        head: "mean" over the heads, "all" of them side by side, a number from 0, "rollout",
            "relevance" for the most probable class, or "grad-cam" for it, which any classifier has,
            without attention too; there -1 is the last block whose places count.
        query: a prefix token by its index, or a patch as (row, column) of the layer's map. By
            default the class token; without one, the mean over all patches.

    Raises:
        UserError: unknown layer, head or patch, a model without attention, or a missing image.
    """
    many = isinstance(image, list | tuple) or getattr(image, "ndim", 3) == 4
    inputs = list(image) if many else [image]
    if len(inputs) > MOST_IMAGES:
        raise UserError(
            f"{len(inputs)} images are too many for one overlay, which has a row for each; "
            f"give at most {MOST_IMAGES}"
        )
    seen_by_model = np.stack(
        [classifier.preprocessing(classifier.preprocessing.decode(one)) for one in inputs]
    )
    images = np.asarray(classifier.preprocessing.normalize(seen_by_model))
    if head == GRAD_CAM:
        maps = _cam_maps(classifier, images, layer, query)
    else:
        seen = compute_attention(classifier.model, classifier.variables, images)
        maps = _maps(classifier, seen, images, layer, head, query)
    guesses = _guesses(classifier, inputs)

    in_line = min(len(maps.by_title), _MAPS_IN_LINE)
    lines = -(-len(maps.by_title) // in_line)
    height, width = seen_by_model.shape[1:3]
    line = 0.9 + 3.2 * min(height / width, 3)
    size = (3.2 * (2 + in_line), 0.1 + line * lines * len(inputs))
    figure = Figure(figsize=size, layout="constrained")
    rows = figure.subplots(lines * len(inputs), 2 + in_line, squeeze=False)
    for number in range(len(inputs)):
        of_image = rows[number * lines : (number + 1) * lines]
        panels = [*of_image[0, :2], *of_image[:, 2:].ravel()]
        one = {title: values[number] for title, values in maps.by_title.items()}
        _draw_image(panels, seen_by_model[number], one, maps, query, guesses[number])
        for panel in (*of_image[1:, :2].ravel(), *panels[2 + len(one) :]):
            panel.set_visible(False)
    return figure


def _draw_image(
    panels: Sequence[Axes],
    image: UInt8[np.ndarray, "height width channels"],
    by_title: dict[str, Float[np.ndarray, "key_rows key_columns"]],
    maps: _Maps,
    query: Query,
    guesses: str,
) -> None:
    """Draw one image: the input, the map in numbers, and the overlays of all maps."""
    layer = maps.layer
    _show(panels[0], image, "model input")
    panels[0].set_xlabel(guesses, fontsize=9, parse_math=False)
    mean = np.mean(list(by_title.values()), axis=0)
    signed = min(one.min() for one in by_title.values()) < 0  # possible in Linformer
    scale = {"cmap": "RdBu_r", "vmin": -np.abs(mean).max(), "vmax": np.abs(mean).max()}
    scale = scale if signed else {"cmap": "viridis", "vmin": 0}
    shown = panels[1].imshow(mean, **scale)
    _title(panels[1], maps.unit if len(by_title) == 1 else f"{maps.unit}, mean of the heads")
    panels[1].figure.colorbar(shown, ax=panels[1], shrink=0.8)
    grey = image.mean(axis=-1, keepdims=True)  # colours show the map
    for panel, (title, one) in zip(panels[2:], by_title.items(), strict=False):
        _show(panel, grey, f"{title}\n{maps.asked}")
        large = over_image(one[None], layer, image.shape[:2])[0]
        bound = np.abs(one).max() if signed else None
        low = -bound if signed else 0
        panel.imshow(large, cmap="RdBu_r" if signed else "inferno", alpha=0.6, vmin=low, vmax=bound)
        panel.set_xlabel(maps.largest.format(one.max()), fontsize=9)
    if isinstance(query, tuple):
        for panel in (panels[0], *panels[2 : 2 + len(by_title)]):
            _outline(panel, query, layer.patch_size)
        _outline(
            panels[1], query, [k / n for k, n in zip(layer.keys_grid, layer.grid, strict=True)]
        )


def _maps(
    classifier: Classifier,
    seen: Attention,
    images: Float[np.ndarray, "images height width channels"],
    layer: int | str,
    head: str,
    query: Query,
) -> _Maps:
    """Return the requested maps, in units of uniform attention."""
    model = classifier.model
    at = _pooling(seen) if layer == POOL else seen.layer(layer)
    if head == "relevance":
        at = seen.layers[-1]
        through = relevance(model, classifier.variables, images)
        # A token's weight on itself by the residual path is not attention.
        one = at.to_grid(through - np.eye(through.shape[-1], dtype=np.float32), query)
        total = np.maximum(one.sum(axis=(1, 2), keepdims=True), np.finfo(np.float32).tiny)
        return _Maps(at, {head: at.keys * one / total}, _asked(model, at, query))
    if head == "rollout":
        if layer == POOL:
            raise UserError("head 'rollout' combines layers, but 'pool' is not one; use a number")
        through = seen.stage(layer)
        one = at.to_grid(rollout([one.matrix() for one in through]), query)
        title = "rollout"
        if len(through) < len(seen.layers):
            title += f", {through[0].name}"
        if 1 < len(through) < len(seen.layers):
            title += f" to {through[-1].name}"
        return _Maps(at, {title: at.keys * one}, _asked(model, at, query))
    if head == "all":
        titles = {f"{at.name}, head {number}": number for number in range(at.heads)}
    elif head == "mean":
        titles = {f"{at.name}, mean of {at.heads} heads": None}
    elif head.isdecimal():
        titles = {f"{at.name}, head {head}": int(head)}
    else:
        raise UserError(
            f"head {head!r} is invalid{nearest(head, HEADS)}; use {', '.join(HEADS)} or the "
            f"number of a head, 0 to {at.heads - 1}"
        )
    by_title = {title: at.keys * at.map(query, number) for title, number in titles.items()}
    return _Maps(at, by_title, _asked(model, at, query))


def _cam_maps(
    classifier: Classifier,
    images: Float[np.ndarray, "images height width channels"],
    layer: int | str,
    query: Query,
) -> _Maps:
    """Return Grad-CAM's maps for the most probable class."""
    if layer == POOL or query != 0:
        raise UserError(
            "head 'grad-cam' shows the output of a block for a class; omit layer 'pool' and the "
            "query, which are of attention"
        )
    block = None if layer == -1 else int(layer)
    seen = grad_cam(classifier.model, classifier.variables, images, block=block)
    title = f"Grad-CAM, {seen.block.path.replace('_', ' ').replace('/', ', ')}"
    unit = "part of the logit"
    return _Maps(seen.block, {title: seen.maps}, "most probable class", unit, "largest: {:.2g}")


def _pooling(seen: Attention) -> Layer:
    if seen.pooling is None:
        raise UserError(
            "layer 'pool' needs a model with attention pooling (pool='map'), which this one does "
            "not have; use the number of a layer, or last"
        )
    return seen.pooling


def _asked(model: nn.Module, layer: Layer, query: Query) -> str:
    """Describe the query, and the keys if they are not the patches themselves."""
    if isinstance(query, tuple):
        who = f"query: patch {query[0]},{query[1]}"
    elif not layer.prefix:
        who = "mean over all patches"
    elif layer.grid == (0, 0):
        who = "query: probe token"
    else:
        in_front = ["class token"] if getattr(model, "has_class_token", True) else []
        in_front += ["distillation token"] if getattr(model, "distilled", False) else []
        registers = [f"register {n}" for n in range(layer.prefix - len(in_front))]
        who = f"query: {[*in_front, *registers][query]}"
    if layer.grid not in (layer.keys_grid, (0, 0)):
        rows, columns = layer.keys_grid
        who += f"; {rows} x {columns} keys"
    return who


def _guesses(classifier: Classifier, inputs: list[ImageLike]) -> list[str]:
    """Return the three most probable classes of each image, one per line; none without classes.

    The only class there is has no probability worth telling.
    """
    if not getattr(classifier.model, "num_classes", 1):
        return [""] * len(inputs)
    if len(classifier.class_names) == 1:
        return [short_name(classifier.class_names[0], _LONGEST_NAME)] * len(inputs)
    return [
        "\n".join(
            f"{short_name(guess.label, _LONGEST_NAME)} {100 * guess.probability:.1f} %"
            for guess in guesses
        )
        for guesses in classifier.predict(inputs, top=3)
    ]


def _show(panel: Axes, image: np.ndarray, title: str) -> None:
    """Draw an image `(height, width, channels)` of values 0 to 255; grey with one channel."""
    show_image(panel, image, limits=(0, 255))
    _title(panel, title)


def _title(panel: Axes, title: str) -> None:
    panel.set_title(title, fontsize=10)
    panel.set_xticks([])
    panel.set_yticks([])


def _outline(panel: Axes, query: tuple[int, int], side: Sequence[float]) -> None:
    """Draw a square around the query patch; `side` is a patch's side in pixels of the panel."""
    corner = (query[1] * side[1] - 0.5, query[0] * side[0] - 0.5)
    square = {"fill": False, "edgecolor": "cyan", "linewidth": 2}
    panel.add_patch(Rectangle(corner, side[1], side[0], **square))
