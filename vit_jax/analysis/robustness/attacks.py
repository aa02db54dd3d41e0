"""Adversarial attacks: FGSM and PGD.

    pixels = images / 255                        # float, 0 to 1, (batch, height, width, channels)
    changed = fgsm(model, variables, preprocessing.normalize_unit, pixels, labels, eps=2 / 255)
    changed = pgd(model, variables, preprocessing.normalize_unit, pixels, labels, eps=2 / 255)

- Distances are of pixels in the range 0 to 1, before normalisation: in `linf` the largest change
  of a channel of a pixel, in `l2` the root of the sum of all squares over an image. Results are
  clipped to 0 and 1, which only reduces the distance.
- The attacker knows the model and the label, and increases the cross-entropy. Both attacks are
  one-sided bounds: a robust result does not exclude a stronger attack.
- Every image is attacked independently, so results do not depend on the other images of a batch.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Int

from vit_jax.analysis.inputs import check_unit
from vit_jax.errors import UserError

NORMS = ("linf", "l2")

Normalise = Callable[[Float[Array, "batch h w c"]], Float[Array, "batch h w c"]]
Pixels = Float[Array, "batch height width channels"]


def fgsm(
    model: nn.Module,
    variables: Mapping[str, Any],
    normalise: Normalise,
    images: Pixels,
    labels: Int[Array, " batch"],
    eps: float,
    norm: str = "linf",
) -> Pixels:
    """Attack by one step of length `eps` along the gradient of the loss (Goodfellow et al. 2015,
    "Explaining and harnessing adversarial examples", section 4).

    In `linf` the step is `eps * sign(gradient)`, in `l2` along the gradient itself. For a model
    with two classes whose logits are linear in the pixels, no change of that size increases the
    loss more.

    Args:
        model: a module whose `apply` returns logits, with `train=False`.
        variables: its parameters, and other collections if it has any.
        normalise: maps pixels in the range 0 to 1 to the model's inputs, such as
            `Preprocessing.normalize_unit`; pass the same object each time to avoid recompilation.
        images: float pixels, 0 to 1.
        labels: true class indices.
        eps: length of the step, for pixels in the range 0 to 1.
        norm: of `NORMS`.

    Returns:
        float32 pixels, 0 to 1.

    Raises:
        UserError: unknown norm, `eps` below 0, or images of another type or range.
    """
    _check(eps, norm, 1)
    check_unit(images)
    return _ascend(model, normalise, norm, 1, variables, images, labels, None, eps, eps)


def pgd(
    model: nn.Module,
    variables: Mapping[str, Any],
    normalise: Normalise,
    images: Pixels,
    labels: Int[Array, " batch"],
    eps: float,
    norm: str = "linf",
    steps: int = 10,
    step_size: float | None = None,
    seed: int = 0,
    numbers: Int[np.ndarray, " batch"] | None = None,
) -> Pixels:
    """Attack by several gradient steps, each projected to within `eps`, from a random start (Madry
    et al. 2018, "Towards deep learning models resistant to adversarial attacks", section 2.1).

    The result is the point with the highest loss, the start included.

    Args:
        model, variables, normalise, images, labels, eps, norm: as for `fgsm`.
        steps: number of steps.
        step_size: length of each; None: `2.5 * eps / steps`, which reaches the boundary from any
            point inside and leaves steps to move along it.
        seed: of the random starts: uniform within `eps` in `linf`; in `l2` a direction of equal
            direction and a uniform length.
        numbers: one per image, which with `seed` determines its start; None: its position.

    Raises:
        UserError: unknown norm, `eps` or a step below 0, no steps, or images of another type or
            range.
    """
    step_size = 2.5 * eps / max(1, steps) if step_size is None else step_size
    _check(min(eps, step_size), norm, steps)
    check_unit(images)
    numbers = np.arange(len(images)) if numbers is None else numbers
    start = random_change(images.shape[1:], seed, numbers, norm)
    return _ascend(model, normalise, norm, steps, variables, images, labels, start, eps, step_size)


@functools.partial(jax.jit, static_argnums=(0, 3))
def random_change(
    shape: tuple[int, int, int], seed: int, numbers: Int[np.ndarray, " batch"], norm: str
) -> Float[Array, "batch height width channels"]:
    """Draw a random change for each image, of norm at most 1, determined by its number.

    In `linf` every value is uniform from -1 to 1; in `l2` the direction is uniform and the length
    is uniform from 0 to 1.
    """

    def one(number):
        direction, length = jax.random.split(jax.random.fold_in(jax.random.key(seed), number))
        if norm == "linf":
            return jax.random.uniform(direction, shape, minval=-1.0, maxval=1.0)
        normal = jax.random.normal(direction, shape)
        return jax.random.uniform(length) * normal / jnp.linalg.norm(normal)

    return jax.vmap(one)(jnp.asarray(numbers, jnp.uint32))


def cross_entropy(
    logits: Float[Array, "batch outputs"], labels: Int[Array, " batch"]
) -> Float[Array, " batch"]:
    """Return the loss of each image; a single output is the logit of class 1 of two."""
    log_probabilities = jax.nn.log_softmax(class_logits(logits))
    return -jnp.take_along_axis(log_probabilities, labels[:, None], axis=-1)[:, 0]


def class_logits(logits: Float[Array, "batch outputs"]) -> Float[Array, "batch classes"]:
    """Return a logit for each class; for a single output that of class 0 is 0."""
    logits = logits.astype(jnp.float32)
    return jnp.pad(logits, ((0, 0), (1, 0))) if logits.shape[-1] == 1 else logits


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _ascend(model, normalise, norm, steps, variables, images, labels, start, eps, step_size):
    """Return the point with the highest loss among `steps` steps along its gradient.

    start: offset in units of `eps` from the images; None: none, and then the last point is the
    result, whatever its loss.
    """
    origin = jnp.asarray(images, jnp.float32)

    def losses(pixels):
        logits = model.apply(variables, normalise(pixels), train=False)
        each = cross_entropy(logits, labels)
        return each.sum(), each

    def within(pixels):
        change = pixels - origin
        if norm == "linf":
            change = jnp.clip(change, -eps, eps)
        else:
            change *= jnp.minimum(1, eps / jnp.maximum(_length(change), 1e-12))
        return jnp.clip(origin + change, 0, 1)

    def step(_, carried):
        pixels, best, highest = carried
        (_, loss), gradient = jax.value_and_grad(losses, has_aux=True)(pixels)
        best, highest = _higher(pixels, loss, best, highest)
        if norm == "linf":
            direction = jnp.sign(gradient)
        else:
            direction = gradient / jnp.maximum(_length(gradient), 1e-30)
        direction = jnp.nan_to_num(direction, nan=0.0)  # an image must not have NaN pixels
        return within(pixels + step_size * direction), best, highest

    pixels = origin if start is None else within(origin + eps * start)
    none_yet = jnp.full(len(origin), -jnp.inf)
    pixels, best, highest = jax.lax.fori_loop(0, steps, step, (pixels, pixels, none_yet))
    if start is None:
        return pixels
    return _higher(pixels, losses(pixels)[1], best, highest)[0]


def _higher(pixels, loss, best, highest):
    """Return for every image the point with the higher loss, and that loss.

    A loss that is NaN is the highest: there the model has no prediction.
    """
    better = (loss > highest) | jnp.isnan(loss)
    return jnp.where(better[:, None, None, None], pixels, best), jnp.maximum(loss, highest)


def _length(change: Pixels) -> Float[Array, "batch 1 1 1"]:
    return jnp.sqrt(jnp.square(change).sum(axis=(1, 2, 3), keepdims=True))


def _check(length: float, norm: str, steps: int) -> None:
    if norm not in NORMS:
        raise UserError(f"norm={norm} is invalid; use one of {', '.join(NORMS)}")
    if length < 0 or steps < 1:
        raise UserError("an attack needs at least one step, and lengths of 0 or more")
