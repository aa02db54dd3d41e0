"""Attention drawn over a picture, for a person to read.

A map is shown in units of uniform attention: 1 where a patch gets what each would get if all got
alike, so that pictures, layers and models can be compared.
"""

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vit_jax.analysis.attention import Attention, look, relevance, rollout, upsample
from vit_jax.data import decode
from vit_jax.data.decode import Picture
from vit_jax.deploy import Classifier
from vit_jax.errors import UserError, nearest

HEADS = ("mean", "all", "rollout", "relevance")


def draw_attention(
    classifier: Classifier, picture: Picture, layer: int = -1, head: str = "mean"
) -> Figure:
    """What the model sees of a picture, where it looks, and the classes it finds.

    Args:
        picture: as `Classifier.predict` takes one.
        layer: from 0, -1 is the last; of "rollout" and "relevance", which go through all, no part.
        head: "mean" over the heads, "all" of them side by side, a number from 0, "rollout" or
            "relevance" for the most probable class.

    Raises:
        UserError: no such layer or head, a model without attention, or no such picture.
    """
    seen_by_model = classifier.preprocessing(decode(picture))
    images = classifier.preprocessing.normalize(seen_by_model[None])
    seen = look(classifier.model, classifier.variables, images)
    maps = _maps(classifier, seen, images, layer, head)
    figure = Figure(figsize=(3.2 * (2 + len(maps)), 3.8), layout="constrained")
    panels = figure.subplots(1, 2 + len(maps))
    _show(panels[0], seen_by_model, "what the model sees")
    mean = np.mean(list(maps.values()), axis=0)
    shown = panels[1].imshow(mean, cmap="viridis", vmin=0)
    panels[1].set_title("times uniform attention" if len(maps) == 1 else "mean of the heads")
    panels[1].set_axis_off()
    figure.colorbar(shown, ax=panels[1], shrink=0.8)
    for panel, (title, one) in zip(panels[2:], maps.items(), strict=True):
        _show(panel, seen_by_model, title)
        large = upsample(one[None], seen_by_model.shape[:2])[0]
        panel.imshow(large, cmap="inferno", alpha=0.6, vmin=0)
    guesses = classifier.predict([picture], top=3)[0]
    figure.suptitle(
        "   ".join(f"{guess.label} {100 * guess.probability:.1f} %" for guess in guesses)
    )
    return figure


def _maps(
    classifier: Classifier, seen: Attention, images, layer: int, head: str
) -> dict[str, Float[np.ndarray, "height width"]]:
    """Maps by their titles, in units of uniform attention."""
    patches = seen.grid[0] * seen.grid[1]
    name = f"layer {layer % len(seen.weights)}"
    if head == "rollout":
        return {head: patches * seen.to_grid(rollout(seen.weights))[0]}
    if head == "relevance":
        through = relevance(classifier.model, classifier.variables, images)
        one = seen.to_grid(through)[0]
        return {head: one * patches / max(one.sum(), np.finfo(np.float32).tiny)}
    heads = seen.layer(layer).shape[1]
    if head == "all":
        numbers = range(heads)
        return {f"{name}, head {n}": patches * seen.class_map(layer, n)[0] for n in numbers}
    if head == "mean":
        return {f"{name}, mean of {heads} heads": patches * seen.class_map(layer)[0]}
    if not head.isdecimal():
        raise UserError(
            f"--head={head} is not legal{nearest(head, HEADS)}; write {', '.join(HEADS)} or the "
            f"number of a head, 0 to {heads - 1}"
        )
    return {f"{name}, head {head}": patches * seen.class_map(layer, int(head))[0]}


def _show(panel: Axes, image: np.ndarray, title: str) -> None:
    grey = image.shape[2] == 1
    panel.imshow(image[:, :, 0] if grey else image, cmap="gray" if grey else None)
    panel.set_title(title)
    panel.set_axis_off()
