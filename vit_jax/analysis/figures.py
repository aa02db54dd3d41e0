"""Shared parts of figures: shortened names, and images in a panel."""

import numpy as np
from matplotlib.axes import Axes

from vit_jax.data.images.clips import still
from vit_jax.text import printable

MOST_NAMED_CLASSES = 40  # with more classes, names on an axis are illegible


def short_name(name: str, longest: int = 20) -> str:
    """Shorten a name to fit beside an image, by cutting its end."""
    name = printable(name)
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def show_image(
    panel: Axes,
    image: np.ndarray,
    colours: str = "gray",
    limits: tuple[float, float] | None = None,
) -> None:
    """Draw an image without ticks; with one channel in colours, scaled by `limits` or its range.

    Of a clip the middle frame is drawn.
    """
    image = still(image)
    flat = image.ndim == 2 or image.shape[-1] == 1
    lowest, highest = limits or ((0, 255) if image.dtype == np.uint8 else (None, None))
    panel.imshow(
        image.reshape(image.shape[:2]) if flat else image,
        cmap=colours,
        vmin=lowest,
        vmax=highest,
    )
    panel.set(xticks=[], yticks=[])
