"""What in an image decides between two classes: gradients with respect to its pixels.

    margin = Margin(model, variables, wanted=[3], against=[8])   # logit of 3 less logit of 8
    input_gradient(margin, images)          # (batch, height, width, channels)
    integrated_gradients(margin, images, baseline)
    smooth_grad(margin, images)

What is notable here:
- It needs a model's logits and nothing of what is inside, so it works for every architecture.
- For a mistake, the classes to take are the one that was said and the true one: the gradient of one
  logit alone also shows what speaks for both.
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
    """How far a class is ahead of another: the difference of their logits, for each image.

    model, variables: the network and its parameters, and other collections if it has some.
    wanted: a class for each image. against: another one for each; None: nothing is subtracted.

    A model of a single output, which tells two classes apart, has 0 as the logit of the first.
    """

    model: nn.Module
    variables: Mapping[str, Any]
    wanted: Sequence[int]
    against: Sequence[int] | None = None

    def __call__(self, images: Images) -> Float[Array, " batch"]:
        """The margins of normalised images, float32."""
        check_normalised(images)
        return _margins(self.model, self.variables, images, *self._classes(len(images)))

    def gradient(self, images: Images) -> Maps:
        """The gradient of every image's margin with respect to the image.

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
                    f"{len(classes)} classes for {count} images; say one for each image"
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
    """Where a small change of an image moves the margin most (Simonyan et al. 2014, section 3).

    Args:
        images: float32, normalised.

    Returns:
        The gradient, in logits for each unit of the normalised pixels.
    """
    return margin.gradient(images)


def integrated_gradients(
    margin: Margin,
    images: Images,
    baseline: Float[Array, "#batch #height #width #channels"] | float = 0.0,
    steps: int = 64,
) -> Maps:
    """What of an image the margin is made of, compared with another image.

    The gradient is averaged along the straight line from the baseline, at the middles of `steps`
    pieces, and multiplied by the difference. The numbers of an image sum to its margin less that
    of the baseline, up to the error of so many pieces (Sundararajan et al. 2017, "Axiomatic
    attribution for deep networks", equation 1 and proposition 1).

    Args:
        images: float32, normalised.
        baseline: what stands for nothing to be seen, normalised like the images: black in the
            paper, `preprocessing.normalize` of zeros. 0 is the mean colour of the normalisation.
            Where an image equals its baseline, nothing is attributed.
        steps: pieces of the line; each takes a forward and a backward pass.
    """
    if steps < 1:
        raise UserError(f"{steps} steps are invalid; take 1 or more, such as 64")
    check_normalised(images)  # before a step turns whole numbers into floats
    images = jnp.asarray(images, jnp.float32)
    start = jnp.broadcast_to(jnp.asarray(baseline, jnp.float32), images.shape)
    total = np.zeros(images.shape, np.float64)
    for step in range(steps):
        total += margin.gradient(start + (step + 0.5) / steps * (images - start))
    return (np.asarray(images - start) * total / steps).astype(np.float32)


def smooth_grad(
    margin: Margin, images: Images, noise: float = 0.15, samples: int = 32, seed: int = 0
) -> Maps:
    """The mean gradient of noisy copies of an image (Smilkov et al. 2017, "SmoothGrad").

    Args:
        images: float32, normalised.
        noise: standard deviation, as a share of each image's range from darkest to brightest; the
            paper finds 0.1 to 0.2 best.
        samples: copies of each image.
        seed: of the noise.
    """
    if samples < 1:
        raise UserError(f"{samples} samples are invalid; take 1 or more, such as 32")
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
    """The largest magnitude among the channels of each pixel (Simonyan et al. 2014)."""
    return np.abs(maps).max(axis=-1)
