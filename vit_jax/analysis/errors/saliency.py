"""Saliency: gradients of the margin between two classes with respect to the pixels.

    margin = Margin(model, variables, wanted=[3], against=[8])   # logit of 3 minus logit of 8
    input_gradient(margin, images)          # (batch, height, width, channels)
    integrated_gradients(margin, images, baseline)
    smooth_grad(margin, images)

- It needs only a model's logits, nothing inside it, so it works for every architecture.
- For an error, use the predicted and the true class: the gradient of one logit alone also shows
  evidence for both.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.analysis.inputs import check_normalised
from vit_jax.errors import UserError

Images = Float[Array, "batch height width channels"]
Maps = Float[np.ndarray, "batch height width channels"]


@dataclass(frozen=True)
class Margin:
    """Margin between two classes: the difference of their logits, for each image.

    model, variables: the network with its parameters, and other collections if it has any.
    wanted: a class for each image. against: another one for each; None: nothing is subtracted.

    A model with a single output, for two classes, has 0 as the logit of class 0.
    """

    model: nn.Module
    variables: Mapping[str, Any]
    wanted: Sequence[int]
    against: Sequence[int] | None = None

    def __call__(self, images: Images) -> Float[Array, " batch"]:
        """Return the margins of normalised images, float32."""
        check_normalised(images)
        return _margins(self.model, self.variables, images, *self._classes(len(images)))

    def gradient(self, images: Images) -> Maps:
        """Return the gradient of every image's margin with respect to the image.

        Raises UserError for images that are not normalised.
        """
        check_normalised(images)
        images = jnp.asarray(images, jnp.float32)
        return np.asarray(self._gradient(self.variables, images, *self._classes(len(images))))

    @functools.cached_property
    def _gradient(self):
        def total(images, variables, wanted, against):
            return _margins(self.model, variables, images, wanted, against).sum()

        return jax.jit(
            lambda variables, images, *classes: jax.grad(total)(images, variables, *classes)
        )

    def _classes(self, count: int) -> tuple[Array, Array | None]:
        for classes in (self.wanted, self.against):
            if classes is not None and len(classes) != count:
                raise UserError(
                    f"{len(classes)} classes for {count} images; pass one for each image"
                )
        against = None if self.against is None else jnp.asarray(self.against)
        return jnp.asarray(self.wanted), against


def _margins(model, variables, images, wanted, against) -> Float[Array, " batch"]:
    logits = model.apply(variables, images, train=False)
    if logits.shape[-1] == 1:
        logits = jnp.concatenate([jnp.zeros_like(logits), logits], axis=-1)
    margins = jnp.take_along_axis(logits, wanted[:, None], axis=-1)
    if against is not None:
        margins -= jnp.take_along_axis(logits, against[:, None], axis=-1)
    return margins[:, 0]


def input_gradient(margin: Margin, images: Images) -> Maps:
    """Compute the gradient of the margin in the pixels (Simonyan et al. 2014, section 3).

    Args:
        images: float32, normalised.

    Returns:
        The gradient, in logits per unit of the normalised pixels.
    """
    return margin.gradient(images)


def integrated_gradients(
    margin: Margin,
    images: Images,
    baseline: Float[Array, "#batch #height #width #channels"] | float = 0.0,
    steps: int = 64,
) -> Maps:
    """Attribute the margin to the pixels of an image, in comparison with a baseline image.

    The gradient is averaged along the straight line from the baseline, at the midpoints of `steps`
    intervals, and multiplied by the difference. The values of an image sum to its margin minus that
    of the baseline, up to the error of the steps (Sundararajan et al. 2017, "Axiomatic attribution
    for deep networks", equation 1 and proposition 1).

    Args:
        images: float32, normalised.
        baseline: image without content, normalised like the images: black in the paper,
            `preprocessing.normalize` of zeros. 0 is the mean colour of the normalisation. Pixels
            equal to the baseline get no attribution.
        steps: intervals of the line; each takes a forward and a backward pass.
    """
    if steps < 1:
        raise UserError(f"{steps} steps are invalid; use 1 or more, such as 64")
    check_normalised(images)  # before a step converts integers to floats
    images = jnp.asarray(images, jnp.float32)
    start = jnp.broadcast_to(jnp.asarray(baseline, jnp.float32), images.shape)
    total = np.zeros(images.shape, np.float64)
    for step in range(steps):
        total += margin.gradient(start + (step + 0.5) / steps * (images - start))
    return (np.asarray(images - start) * total / steps).astype(np.float32)


def smooth_grad(
    margin: Margin, images: Images, noise: float = 0.15, samples: int = 32, seed: int = 0
) -> Maps:
    """Average the gradient over noisy copies of an image (Smilkov et al. 2017, "SmoothGrad").

    Args:
        images: float32, normalised.
        noise: standard deviation, as a fraction of each image's range from darkest to brightest;
            the paper finds 0.1 to 0.2 best.
        samples: number of copies of each image.
        seed: of the noise.
    """
    if samples < 1:
        raise UserError(f"{samples} samples are invalid; use 1 or more, such as 32")
    check_normalised(images)
    images = np.asarray(images, np.float32)
    scale = noise * (
        images.max(axis=(1, 2, 3), keepdims=True) - images.min(axis=(1, 2, 3), keepdims=True)
    )
    rng = np.random.default_rng(seed)
    total = np.zeros(images.shape, np.float64)
    for _ in range(samples):
        noisy = images + scale * rng.standard_normal(images.shape, np.float32)
        total += margin.gradient(noisy)
    return (total / samples).astype(np.float32)


def strength(maps: Maps) -> Float[np.ndarray, "batch height width"]:
    """Return the largest magnitude over the channels of each pixel (Simonyan et al. 2014)."""
    return np.abs(maps).max(axis=-1)
