"""Images beside what a model has made of the visible part of them, as a figure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from vit_jax.data import Preprocessing
from vit_jax.evaluation.base import HELD_OUT, Evaluator, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HIDDEN = 0.5  # grey of removed pixels


@dataclass(frozen=True)
class Reconstructions(Evaluator):
    """Figure of the first images, what is visible of them, and their reconstruction.

    reconstruct: from variables and a batch to rows of `image`, `reconstruction` (both normalised)
        and `removed` (1 for removed pixels), all of `(batch, height, width, channels)`.
    preprocessing: of the images. title: of the figure.
    """

    reconstruct: Callable
    preprocessing: Preprocessing
    title: str
    name: ClassVar[str] = "reconstructions"
    every: ClassVar[str] = "100%"
    examples: ClassVar[int] = 8

    def step(self, variables, batch):
        """Return the images as rows; the only sum is the number of images."""
        return {"weight": jnp.sum(batch["mask"])}, self.reconstruct(variables, batch)

    def finish(self, parts):
        """Return the figure, and no metric but the number of images."""
        rows = parts[HELD_OUT].rows
        image, reconstruction, removed = (
            rows[name][: self.examples] for name in ("image", "reconstruction", "removed")
        )
        image, reconstruction = map(self.preprocessing.shown, (image, reconstruction))
        panels = {
            "image": image,
            "visible": np.where(removed > 0, _HIDDEN, image),
            "reconstruction": np.where(removed > 0, reconstruction, image),
        }
        figures = {self.name: lambda: draw_rows(panels, self.title)}
        return Result({"examples": len(image)}, figures=figures)


def draw_rows(
    rows: dict[str, Float[np.ndarray, "images height width channels"]], title: str
) -> "Figure":
    """Draw images from 0 to 1 in columns, with a named row for each set of them."""
    from matplotlib.figure import Figure  # slow to import

    columns = max(map(len, rows.values()))
    figure = Figure(figsize=(1.3 * columns + 1, 1.3 * len(rows) + 0.7), layout="constrained")
    panels = figure.subplots(len(rows), columns, squeeze=False)
    for line, (name, images) in zip(panels, rows.items(), strict=True):
        line[0].set_ylabel(name)
        for panel, image in zip(line, images, strict=False):
            image = image if image.shape[-1] == 3 else image.mean(-1)
            panel.imshow(image, cmap="gray", vmin=0, vmax=1)
        for panel in line:
            panel.set(xticks=[], yticks=[])
    figure.suptitle(title, fontsize=9)
    return figure
