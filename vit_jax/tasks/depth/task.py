"""Depth: the distance of every pixel, from one image.

- A batch holds `depth`, where 0 is unknown and counts in no loss and in no metric.
- With the loss "silog" the outputs of the model are depths, in the unit of the data; with "affine"
  they are inverse depths up to a factor and a shift, which is all that data of mixed origin agree
  on, and each image is aligned to its truth before it is judged.

Sources: see `losses` and `vit_jax.evaluation.dense.depth`.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import flax.linen as nn
import jax
from jaxtyping import Array, Float

from vit_jax.data import Preprocessing
from vit_jax.evaluation.dense.depth import (
    ALIGNMENTS,
    CROPS,
    INPUTS,
    DepthEvaluator,
    DepthImages,
    known_depth,
)
from vit_jax.models.dense import DEPTH, gives
from vit_jax.tasks.base import Loss, Task
from vit_jax.tasks.depth.losses import affine_losses, silog_losses
from vit_jax.tasks.registry import register_task

LOSSES = ("silog", "affine")
AFFINE_ALIGNMENTS = ("median", "least_squares")


@register_task("depth")
@dataclass(frozen=True)
class Depth(Task):
    """Loss of predicted depths over the pixels of each image whose depth is known.

    kind: of the loss: "silog" of depths, or "affine" of inverse depths up to a factor and a shift.
    silog_share, silog_factor: see `silog_losses`; 0.85 and 10 are those of BTS.
    affine_alignment, affine_trim, gradient_weight: see `affine_losses`.
    min_depth, max_depth: of known depths, others count as unknown; a `max_depth` of 0 is none.
    alignment: of predictions before they are judged, see `depth_errors`; "auto" is "none" for
        depths and "disparity" for inverse depths.
    crop: part of the images that is judged: "none", "eigen" (NYU) or "garg" (KITTI).
    preprocessing: of the images, to show them.
    """

    model: nn.Module
    kind: str = "silog"
    silog_share: float = 0.5
    silog_factor: float = 1.0
    affine_alignment: str = "median"
    affine_trim: float = 0.2
    gradient_weight: float = 0.5
    min_depth: float = 1e-3
    max_depth: float = 0.0
    alignment: str = "auto"
    crop: str = "none"
    preprocessing: Preprocessing | None = None

    inputs: ClassVar = INPUTS
    from_setting: ClassVar = ("model", "preprocessing")
    monitor: ClassVar = ("abs_rel", "min")

    def __post_init__(self):
        if gives(self.model) != DEPTH:
            raise ValueError(
                f"the task 'depth' needs a model that gives a depth for each pixel, but "
                f"{type(self.model).__name__} gives {gives(self.model)}; use one such as "
                "--config.model.name=DPT-B/16"
            )
        for name, allowed in (
            ("kind", LOSSES),
            ("affine_alignment", AFFINE_ALIGNMENTS),
            ("alignment", ("auto", *ALIGNMENTS)),
            ("crop", tuple(CROPS)),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name} = {getattr(self, name)!r} must be one of {', '.join(allowed)}"
                )
        if self.kind == "silog" and getattr(self.model, "is_relative", False):
            raise ValueError(
                f"kind = 'silog' is the loss of depths, and this {type(self.model).__name__} gives "
                "inverse depths up to a factor and a shift; set kind to affine, or give the model "
                "a max_depth or a scale_shift, such as --config.model.max_depth=10"
            )
        for name in ("silog_share", "affine_trim"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be a number from 0 to 1")
        for name in ("silog_factor", "gradient_weight", "min_depth", "max_depth"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} = {getattr(self, name)} must be 0 or more")
        if 0 < self.max_depth <= self.min_depth:
            raise ValueError(
                f"max_depth = {self.max_depth} must be above min_depth = {self.min_depth}, or 0 "
                "for none"
            )

    # ------------------------------------------------------------------------------- learning

    def loss(self, variables, batch, rng, *, train):
        """Return the sums of the loss of each image with a known depth."""
        predicted, state = self.apply(variables, batch["image"], rng, train=train)
        return self.of_predictions(predicted, batch, state)

    def of_predictions(
        self, predicted: Float[Array, "batch height width"], batch: Any, state: Any = None
    ) -> Loss:
        """Return the sums of the loss of predictions.

        Raises:
            ValueError: the depths of the batch have another size than the predictions.
        """
        truth = batch["depth"]
        if truth.shape != predicted.shape:
            raise ValueError(
                f"the depths of a batch have the shape {truth.shape}, but the model gives "
                f"{predicted.shape}; depths must have the size of the images"
            )
        known = known_depth(truth, self.min_depth, self.max_depth)
        if self.kind == "silog":
            losses = silog_losses(predicted, truth, known, self.silog_share, self.silog_factor)
        else:
            losses = affine_losses(
                predicted,
                truth,
                known,
                self.affine_alignment,
                self.affine_trim,
                self.gradient_weight,
            )
        counted = known.any((1, 2)) * batch.get("mask", 1.0)
        return self.summed(losses, {"mask": counted}, state)

    # -------------------------------------------------------------------------------- judging

    @property
    def judged_alignment(self) -> str:
        """Alignment of predictions before they are judged."""
        if self.alignment != "auto":
            return self.alignment
        return "none" if self.kind == "silog" else "disparity"

    def predict(self, variables: Any, batch: Any) -> tuple[Loss, Float[Array, "batch h w"]]:
        """Return the sums of the loss of a batch, and the outputs of the model."""
        predicted, _ = self.apply(variables, batch["image"], jax.random.key(0), train=False)
        return self.of_predictions(predicted, batch), predicted

    def evaluators(self):
        """Return the evaluator of all metrics, and the figure of some images."""
        settings = (self.judged_alignment, self.min_depth, self.max_depth, self.crop)
        first = DepthEvaluator(self.predict, *settings)
        if self.preprocessing is None:
            return (first,)
        return first, DepthImages(self.predict, self.preprocessing, *settings)

    def describe(self, source):
        """Return what is learned, and a sentence on what is not counted."""
        what = "depths" if self.kind == "silog" else "inverse depths"
        most = f" or above {self.max_depth:g}" if self.max_depth else ""
        unknown = f"pixels with a depth of 0, below {self.min_depth:g}{most} count as unknown"
        return f"with {what} of every pixel", [unknown]
