"""MixUp and CutMix of the images and targets of a batch, inside the compiled training step.

One weight is drawn for a whole batch: the fraction of every image that stays its own. The rest
comes from its partner, the image half a batch before it, cyclically. Reversing the batch instead
would mix the middle image of an odd batch with itself, and rolling by one would mix the copies that
repeated augmentation puts next to each other.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


@dataclass(frozen=True)
class Mixing:
    """Mixing of a batch by MixUp, CutMix, one of the two at random, or neither.

    mixup: alpha of MixUp (Zhang et al. 2018), whose weight is from Beta(alpha, alpha); 0: off.
    cutmix: alpha of CutMix (Yun et al. 2019), likewise.
    probability: of mixing a batch.
    switch: probability of CutMix if both are on.
    """

    mixup: float = 0.0
    cutmix: float = 0.0
    probability: float = 1.0
    switch: float = 0.5

    @property
    def on(self) -> bool:
        """Return whether batches are ever mixed."""
        return self.probability > 0 and (self.mixup > 0 or self.cutmix > 0)

    def __call__(
        self, images: Float[Array, "batch h w c"], rng: Array
    ) -> tuple[Float[Array, "batch h w c"], Float[Array, ""]]:
        """Return the mixed images and the fraction of each that is its own, for `mix_targets`."""
        if not self.on:
            return images, jnp.float32(1)
        whether, which, how = jax.random.split(rng, 3)
        if self.mixup and self.cutmix:
            kind = jax.random.bernoulli(which, self.switch).astype(int)
        else:
            kind = jnp.int32(0 if self.mixup else 1)
        kind = jnp.where(jax.random.bernoulli(whether, self.probability), kind, 2)
        return jax.lax.switch(kind, (self._mixup, self._cutmix, _unmixed), images, how)

    def _mixup(self, images, rng):
        # An unused branch is traced too, so its alpha must be valid.
        alpha = self.mixup or 1.0
        return mixup(images, jax.random.beta(rng, alpha, alpha))

    def _cutmix(self, images, rng):
        alpha = self.cutmix or 1.0
        for_weight, for_box = jax.random.split(rng)
        weight = jax.random.beta(for_weight, alpha, alpha)
        return cutmix(images, random_box(*images.shape[1:3], weight, for_box))


def _unmixed(images, rng):
    del rng
    return images, jnp.float32(1)


def mixup(
    images: Float[Array, "batch h w c"], weight: Float[Array, ""]
) -> tuple[Float[Array, "batch h w c"], Float[Array, ""]]:
    """Return weighted means of each image (`weight`) and its partner, and that weight."""
    weight = jnp.float32(weight)
    return weight * images + (1 - weight) * _partners(images), weight


def cutmix(
    images: Float[Array, "batch h w c"], box: Bool[Array, "h w"]
) -> tuple[Float[Array, "batch h w c"], Float[Array, ""]]:
    """Paste the box from the partners into the images; return also the fraction of own pixels.

    The fraction is counted, since a box may extend beyond the image (Yun et al., their code).
    """
    pasted = jnp.where(box[None, :, :, None], _partners(images), images)
    return pasted, 1 - box.mean(dtype=jnp.float32)


def box_mask(
    height: int, width: int, rows: tuple[Int[Array, ""], ...], columns: tuple[Int[Array, ""], ...]
) -> Bool[Array, "h w"]:
    """Return a mask, True in a box of rows and columns (first, end), which may exceed the image."""
    inside_rows = (jnp.arange(height) >= rows[0]) & (jnp.arange(height) < rows[1])
    inside_columns = (jnp.arange(width) >= columns[0]) & (jnp.arange(width) < columns[1])
    return inside_rows[:, None] & inside_columns[None, :]


def random_box(height: int, width: int, weight: Float[Array, ""], rng: Array) -> Bool[Array, "h w"]:
    """Draw a box of `1 - weight` of the area, with the image's aspect ratio and any centre."""
    side = jnp.sqrt(1 - weight)
    centres = jax.random.uniform(rng, (2,)) * jnp.array([height, width])
    edges = []
    for centre, length in zip(centres, (height, width), strict=True):
        size = jnp.round(side * length).astype(int)
        first = jnp.floor(centre).astype(int) - size // 2
        edges.append((first, first + size))
    return box_mask(height, width, *edges)


def mix_targets(
    targets: Float[Array, "batch classes"], weight: Float[Array, ""]
) -> Float[Array, "batch classes"]:
    """Mix targets like their images."""
    return weight * targets + (1 - weight) * _partners(targets)


def _partners(rows: Array) -> Array:
    return jnp.roll(rows, len(rows) // 2, axis=0)
