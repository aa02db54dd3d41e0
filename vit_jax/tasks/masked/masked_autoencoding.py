"""Masked autoencoding: the pixels of removed patches are predicted from the visible ones.

- The encoder sees only the visible patches, a quarter of them by default, so a step costs about
  half of a supervised one; encoder and decoder are the modules `encoder` and `decoder`.
- In training, masks are drawn for the global batch. In evaluation they follow from the pixels of
  each image, so they are the same every time, for any batch size and any number of devices.
- Labels are not needed.

Source: He et al. 2022, "Masked Autoencoders Are Scalable Vision Learners", and their repository.
"""

import functools
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.data import Preprocessing
from vit_jax.evaluation.base import MeanLoss
from vit_jax.evaluation.reconstruction import Reconstructions
from vit_jax.models.description import model_roles
from vit_jax.models.layers.patch_embed import patchify
from vit_jax.models.masking import Mask, check_can_drop, random_mask, visible_tokens
from vit_jax.models.validation import pair
from vit_jax.models.vit.mae_decoder import MaeDecoder
from vit_jax.tasks.base import Task
from vit_jax.tasks.masked.random_masks import CONTENT, content_hash, mask_noise
from vit_jax.tasks.registry import register_task

_EPSILON = 1e-6  # added to the variance of a patch


@register_task("masked_autoencoding")
@dataclass(frozen=True)
class MaskedAutoencoding(Task):
    """Mean squared error of the predicted pixels of removed patches.

    The batch holds `image`; `noise` `(batch, patches)`, if there, replaces the random numbers that
    choose the patches: those with the smallest are kept.

    mask_ratio: share of removed patches; their number is rounded up.
    norm_pix: whether the pixels of each patch are normalised by their mean and deviation, which
        gives better features (He et al. 2022, table 1d) and a worse look.
    decoder_width, decoder_depth, decoder_heads: of the decoder, which only this task needs.
    preprocessing: of the images, to show them.
    """

    model: nn.Module
    mask_ratio: float = 0.75
    norm_pix: bool = True
    decoder_width: int = 512
    decoder_depth: int = 8
    decoder_heads: int = 16
    preprocessing: Preprocessing | None = None

    encoder = "encoder"
    from_setting = ("model", "preprocessing")

    def __post_init__(self):
        check_can_drop(self.model)
        patches = self.patches
        for name, unit in (("4", 4), (f"decoder_heads = {self.decoder_heads}", self.decoder_heads)):
            if unit < 1 or self.decoder_width < 1 or self.decoder_width % unit:
                raise ValueError(
                    f"decoder_width = {self.decoder_width} is no multiple of {name}; use one"
                )
        if not 0 < self.mask_ratio < 1 or not 1 <= self.keep < patches:
            raise ValueError(
                f"mask_ratio = {self.mask_ratio} keeps {max(self.keep, 0)} of {patches} patches; "
                f"use a number from {_shown(1 / patches)} to {_shown((patches - 1) / patches)}, "
                "so that some are kept and some are removed"
            )

    # -------------------------------------------------------------------------------- modules

    @property
    def patches(self) -> int:
        """Number of patches of an image."""
        height, width = self.model.built_grid
        return height * width

    @property
    def keep(self) -> int:
        """Number of patches that the encoder sees."""
        return int(self.patches * (1 - self.mask_ratio))

    @functools.cached_property
    def decoder(self) -> MaeDecoder:
        """Module from encoded tokens to pixels."""
        height, width = pair(self.model.patch_size)
        return MaeDecoder(
            grid=self.model.built_grid,
            pixels=height * width * self.model.in_channels,
            prefix=self.model.prefix,
            width=self.decoder_width,
            depth=self.decoder_depth,
            heads=self.decoder_heads,
            norm_eps=self.model.norm_eps,
            dtype=self.model.dtype,
            remat=self.model.remat,
        )

    def init(self, rng, batch):
        """Return the initial parameters of encoder and decoder."""
        encoder = super().init(rng, batch)["params"]
        images = len(batch["image"])
        tokens = jnp.zeros((images, self.model.prefix + self.keep, self.model.width))
        restore = jnp.zeros((images, self.patches), jnp.int32)
        decoder = self.decoder.init(jax.random.fold_in(rng, 1), tokens, restore)["params"]
        return {"params": {"encoder": encoder, "decoder": decoder}}

    def roles(self, params):
        """Return the roles of the parameters of encoder and decoder."""
        return {"encoder": model_roles(self.model), "decoder": MaeDecoder.ROLES}

    # ------------------------------------------------------------------------------- learning

    def normalized(self, batch, preprocessing):
        """Return the batch normalised, with a number that follows from the pixels of each image."""
        return {
            **super().normalized(batch, preprocessing),
            CONTENT: content_hash(batch["image"]),
        }

    def loss(self, variables, batch, rng, *, train):
        """Return the sums of the loss of each image: the mean over its removed patches.

        All images have equally many of them, so the mean over images is that over patches.
        """
        predicted, mask = self.predict(variables, batch, rng, train=train)
        targets = self.targets(batch["image"])
        return self.summed(removed_error(predicted, targets, mask.removed), batch)

    def predict(
        self, variables: Any, batch: Any, rng: Array, *, train: bool = False
    ) -> tuple[Float[Array, "batch patches pixels"], Mask]:
        """Return the predicted targets of all patches, visible ones included, and the masks."""
        mask = random_mask(self.noise(batch, rng, train), self.keep)
        of_encoder = {"params": variables["params"]["encoder"]}
        tokens, _ = self.apply(
            of_encoder, batch["image"], rng, train=train, kept=mask.kept, method=visible_tokens
        )
        of_decoder = {"params": variables["params"]["decoder"]}
        return self.decoder.apply(of_decoder, tokens, mask.restore, train=train), mask

    def noise(self, batch: Any, rng: Array, train: bool) -> Float[Array, "batch patches"]:
        """Return the random numbers that choose the patches of each image."""
        return mask_noise(batch, rng, self.patches, train=train)

    def targets(
        self, images: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch patches pixels"]:
        """Return what is to be predicted: the pixels of each patch, normalised with `norm_pix`."""
        patches = self.cut(images)
        if not self.norm_pix:
            return patches
        mean, deviation = statistics(patches)
        return (patches - mean) / deviation

    def cut(
        self, images: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch patches pixels"]:
        """Return the patches of normalised images, pixels in the order (row, column, channel)."""
        patches = patchify(images.astype(jnp.float32), pair(self.model.patch_size))
        return patches.reshape(len(images), self.patches, -1)

    # -------------------------------------------------------------------------------- judging

    def evaluators(self):
        """Return the evaluators of the loss and of a figure of reconstructions."""
        loss = MeanLoss(self.loss)
        if self.preprocessing is None:
            return (loss,)
        title = f"{self.patches - self.keep} of {self.patches} patches are removed"
        if self.norm_pix:
            title += "; the mean and the deviation of each reconstructed patch are the true ones"
        return loss, Reconstructions(self.reconstruct, self.preprocessing, title)

    def reconstruct(self, variables: Any, batch: Any) -> dict[str, Array]:
        """Return normalised images, their reconstructions, and 1 for each removed pixel.

        With `norm_pix` the model predicts normalised patches, to which the true mean and deviation
        of each patch are applied.
        """
        patches = self.cut(batch["image"])
        predicted, mask = self.predict(variables, batch, jax.random.key(0))
        if self.norm_pix:
            mean, deviation = statistics(patches)
            predicted = predicted * deviation + mean
        removed = jnp.broadcast_to(mask.removed[..., None], patches.shape)
        found = {"image": patches, "reconstruction": predicted, "removed": removed}
        return {name: self.join(x) for name, x in found.items()}

    def join(
        self, patches: Float[Array, "batch patches pixels"]
    ) -> Float[Array, "batch height width channels"]:
        """Return the images of flat patches; it reverses `cut`."""
        (rows, columns), (height, width) = self.model.built_grid, pair(self.model.patch_size)
        grid = patches.reshape(len(patches), rows, columns, height, width, -1)
        return grid.swapaxes(2, 3).reshape(len(patches), rows * height, columns * width, -1)


def removed_error(
    predicted: Float[Array, "batch patches pixels"],
    targets: Float[Array, "batch patches pixels"],
    removed: Float[Array, "batch patches"],
) -> Float[Array, " batch"]:
    """Return the mean squared error of the removed patches of each image."""
    errors = jnp.mean((predicted - targets) ** 2, axis=-1)
    return jnp.sum(errors * removed, axis=1) / jnp.sum(removed, axis=1)


def statistics(
    patches: Float[Array, "batch patches pixels"],
) -> tuple[Float[Array, "batch patches 1"], Float[Array, "batch patches 1"]]:
    """Return mean and deviation of the pixels of each patch.

    The variance is unbiased, that of torch: it is divided by one less than the number of pixels.
    """
    mean = patches.mean(axis=-1, keepdims=True)
    variance = patches.var(axis=-1, ddof=1, keepdims=True)
    return mean, jnp.sqrt(variance + _EPSILON)


def _shown(ratio: float) -> str:
    return f"{ratio:.2g}"
