"""SimMIM: the pixels of masked parts are predicted by one linear layer; for pyramids too.

- A learned token replaces the embeddings of masked patches, so the encoder sees a whole grid. It
  costs as much as supervised training, and works for ViT, Swin, PVT and ConvNeXt.
- Parts are squares of `mask_unit` pixels, larger than a patch, for a small one can be guessed from
  its neighbours.

Source: Xie et al. 2022, "SimMIM: A Simple Framework for Masked Image Modeling", and the
repository's `models/simmim.py` and `data/data_simmim.py`.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.data import Preprocessing
from vit_jax.evaluation.base import MeanLoss
from vit_jax.evaluation.reconstruction import Reconstructions
from vit_jax.models.description import Role, kernel_and_bias, model_roles
from vit_jax.models.masking import masked_features, random_mask, stem_of
from vit_jax.models.validation import pair
from vit_jax.tasks.base import Task
from vit_jax.tasks.masked.random_masks import CONTENT, content_hash, mask_noise
from vit_jax.tasks.registry import register_task

_normal02 = nn.initializers.normal(0.02)


@register_task("simmim")
@dataclass(frozen=True)
class SimMIM(Task):
    """Mean absolute error of the predicted pixels of masked parts.

    The batch holds `image`; `noise` `(batch, parts)`, if there, replaces the random numbers that
    choose the parts: those with the largest are masked.

    mask_ratio: share of masked parts; their number is rounded up.
    mask_unit: side of a part in pixels, a multiple of the patch's.
    preprocessing: of the images, to show them.
    """

    model: nn.Module
    mask_ratio: float = 0.6
    mask_unit: int = 32
    preprocessing: Preprocessing | None = None

    encoder = "encoder"
    from_setting = ("model", "preprocessing")

    def __post_init__(self):
        size, stem = pair(self.model.image_size), stem_of(self.model)
        fits = self.mask_unit > 0 and not any(side % self.mask_unit for side in size)
        if not fits or any(self.mask_unit % side for side in stem.stride):
            raise ValueError(
                f"mask_unit = {self.mask_unit} must divide the image of {size[0]} x {size[1]} "
                f"pixels and be a multiple of the patch of {stem.stride[0]} x {stem.stride[1]}"
            )
        if not 0 < self.mask_ratio < 1 or not 1 <= self.masked < self.parts:
            most = (self.parts - 1) / self.parts
            raise ValueError(
                f"mask_ratio = {self.mask_ratio} masks {self.masked} of {self.parts} parts of "
                f"mask_unit = {self.mask_unit} pixels; use a number above 0 and up to {most:.2g}"
            )

    # -------------------------------------------------------------------------------- modules

    @property
    def grid(self) -> tuple[int, int]:
        """(height, width) in parts."""
        height, width = pair(self.model.image_size)
        return height // self.mask_unit, width // self.mask_unit

    @property
    def parts(self) -> int:
        """Number of parts of an image."""
        return math.prod(self.grid)

    @property
    def masked(self) -> int:
        """Number of masked parts."""
        return math.ceil(self.parts * self.mask_ratio)

    def decoder(self, tokens: int) -> nn.Dense:
        """Return the module from one of the last tokens to the pixels that it stands for."""
        height, width = pair(self.model.image_size)
        return nn.Dense(height * width * self.model.in_channels // tokens, kernel_init=_normal02)

    def init(self, rng, batch):
        """Return the initial parameters of the encoder, the mask token and the decoder."""
        encoder = super().init(rng, batch)
        features = self.model.apply(encoder, batch["image"], train=False, method="features")
        keys = jax.random.split(jax.random.fold_in(rng, 1))
        patches = features.tokens[:, features.prefix :].astype(jnp.float32)
        params = {
            "encoder": encoder["params"],
            "mask_token": _normal02(keys[0], (stem_of(self.model).channels,)),
            "decoder": self.decoder(patches.shape[1]).init(keys[1], patches)["params"],
        }
        return {"params": params}

    def roles(self, params):
        """Return the roles of the parameters of the encoder, the mask token and the decoder."""
        return {
            "mask_token": Role.TOKEN,
            "encoder": model_roles(self.model),
            "decoder": kernel_and_bias(Role.LINEAR),
        }

    # ------------------------------------------------------------------------------- learning

    def normalized(self, batch, preprocessing):
        """Return the batch normalised, with a number that follows from the pixels of each image."""
        return {
            **super().normalized(batch, preprocessing),
            CONTENT: content_hash(batch["image"]),
        }

    def loss(self, variables, batch, rng, *, train):
        """Return the sums of the loss of each image: the mean over its masked pixels."""
        predicted, masked = self.predict(variables, batch, rng, train=train)
        return self.summed(masked_error(predicted, batch["image"], masked), batch)

    def predict(
        self, variables: Any, batch: Any, rng: Array, *, train: bool = False
    ) -> tuple[Float[Array, "batch height width channels"], Float[Array, "batch height width 1"]]:
        """Return the predicted images, and 1 for each masked pixel."""
        noise = mask_noise(batch, rng, self.parts, train=train)
        mask = random_mask(noise, self.parts - self.masked).removed.reshape(-1, *self.grid)
        params, images = variables["params"], batch["image"]
        features, _ = self.apply(
            {"params": params["encoder"]},
            images,
            rng,
            train=train,
            token=params["mask_token"],
            mask=mask,
            method=masked_features,
        )
        patches = features.tokens[:, features.prefix :].astype(jnp.float32)
        pixels = self.decoder(patches.shape[1]).apply({"params": params["decoder"]}, patches)
        grow = functools.partial(jnp.repeat, repeats=self.mask_unit)
        masked = grow(grow(mask, axis=1), axis=2)[..., None]
        return _joined(pixels, features.grid, images.shape), masked

    # -------------------------------------------------------------------------------- judging

    def evaluators(self):
        """Return the evaluators of the loss and of a figure of reconstructions."""
        loss = MeanLoss(self.loss)
        if self.preprocessing is None:
            return (loss,)
        title = f"{self.masked} of {self.parts} parts are masked"
        return loss, Reconstructions(self.reconstruct, self.preprocessing, title)

    def reconstruct(self, variables: Any, batch: Any) -> dict[str, Array]:
        """Return normalised images, their reconstructions, and 1 for each masked pixel."""
        predicted, masked = self.predict(variables, batch, jax.random.key(0))
        return {"image": batch["image"], "reconstruction": predicted, "removed": masked}


def masked_error(
    predicted: Float[Array, "batch height width channels"],
    images: Float[Array, "batch height width channels"],
    masked: Float[Array, "batch height width 1"],
) -> Float[Array, " batch"]:
    """Return the mean absolute error of the masked pixels of each image."""
    errors = jnp.abs(predicted - images).mean(-1, keepdims=True)
    return jnp.sum(errors * masked, axis=(1, 2, 3)) / jnp.sum(masked, axis=(1, 2, 3))


def _joined(pixels: Array, grid: tuple[int, int], shape: tuple[int, ...]) -> Array:
    """Return the image whose parts are the flat pixels of each place of a grid."""
    batch, height, width, channels = shape
    sides = (height // grid[0], width // grid[1])
    apart = pixels.reshape(batch, *grid, *sides, channels)
    return apart.swapaxes(2, 3).reshape(shape)
