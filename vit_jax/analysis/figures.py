"""Pieces of figures that several draw: names that fit, and images in a panel."""

import numpy as np
from matplotlib.axes import Axes

from vit_jax.text import printable

MOST_NAMED_CLASSES = 40  # beyond that, names on an axis are a grey smear


def short_name(name: str, longest: int = 20) -> str:
    """A name that fits beside an image; the end of a long one is left out."""
    name = printable(name)
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def show_image(
    panel: Axes,
    image: np.ndarray,
    colours: str = "gray",
    limits: tuple[float, float] | None = None,
) -> None:
    """An image without ticks; of one number a pixel in colours, from `limits` or its own ends."""
    flat = image.ndim == 2 or image.shape[-1] == 1
    lowest, highest = limits or ((0, 255) if image.dtype == np.uint8 else (None, None))
    panel.imshow(
        image.reshape(image.shape[:2]) if flat else image,
        cmap=colours,
        vmin=lowest,
        vmax=highest,
    )
    panel.set(xticks=[], yticks=[])
