"""Segmentation: a class for every pixel, by a decoder on any backbone.

Names stand for a backbone and its decoder: Segmenter (Strudel et al. 2021), SegFormer (Xie et al.
2021), UPerNet (Xiao et al. 2018) on Swin and ConvNeXt.
"""

from typing import Any, ClassVar, NamedTuple

from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.dense import SEGMENTATION, DenseModel
from vit_jax.models.description.roles import Roles
from vit_jax.models.features import Features
from vit_jax.models.fields import Count, Factory, Positive, Rate, factory
from vit_jax.models.layers.norm import LayerNorm
from vit_jax.models.layers.resize import resize_map
from vit_jax.models.segmentation.decoders import (
    BILINEAR,
    AuxiliaryDecoder,
    DecoderName,
    LinearDecoder,
    Maps,
    MaskTransformer,
    MlpDecoder,
    UperNet,
)

Logits = Float[Array, "batch height width classes"]

DECODERS = {"linear": LinearDecoder, "mask": MaskTransformer, "mlp": MlpDecoder, "upernet": UperNet}
_OF_PYRAMIDS = ("mlp", "upernet")


class TrainingLogits(NamedTuple):
    """Logits of the head and of the auxiliary one, both at the size of the images."""

    head: Logits
    auxiliary: Logits


class Segmentation(DenseModel):
    """Backbone and decoder that give a class for every pixel; by default a linear one on ViT-B/16.

    `model.apply(variables, images)` takes float32 images `(batch, height, width, channels)`,
    already normalised, and gives float32 logits `(batch, height, width, classes)`; with
    `train=True` and an auxiliary head `TrainingLogits`. `method="features"` gives the backbone's
    `Features`. Training wants the rng `"dropout"`. "mlp", "upernet" and the auxiliary head have
    running statistics, the collection `batch_stats`.

    Parameters: `backbone`, `head` (see `decoders`), and if asked for `auxiliary` and
    `map_norms_{i}`.

    Raises:
        ValueError: at construction for an invalid field, at the call if the decoder reads the maps
            of a pyramid and the backbone has none.
    """

    decoder: DecoderName = "linear"
    decoder_width: Count | None = None  # None: as in the paper; of "mask" the backbone's
    decoder_depth: Count = 2  # blocks of "mask"
    decoder_heads: Count | None = None  # of "mask"; None: of 64 channels
    decoder_dropout: Rate = 0.1
    decoder_drop_path: Rate = 0.0  # of the last block of "mask", from 0 linearly
    decoder_norm_eps: Positive = 1e-5  # of the LayerNorms of "mask": torch's own
    norm_maps: bool = False  # LayerNorms of the maps of a pyramid that has none, such as Swin's
    auxiliary_head: bool = False  # a second head on the last map but one, for training
    auxiliary_width: Count = 256

    gives: ClassVar[str] = SEGMENTATION

    def __post_init__(self):
        super().__post_init__()
        if not self.num_classes:
            raise ValueError(
                f"{type(self).__name__}: num_classes=0 leaves no classes for the pixels; use 1 or "
                "more, or the backbone alone."
            )
        _ = self._head()

    def setup(self):
        super().setup()
        self.head = self._head()()
        if self.auxiliary_head:
            self.auxiliary = self._of_decoder(AuxiliaryDecoder, self.auxiliary_width)()
        if self.norm_maps:
            later = len(self.make_backbone().depths) - 1
            eps = self.make_backbone().norm_eps
            self.map_norms = [LayerNorm(eps, self.dtype) for _ in range(later)]

    def __call__(
        self, images: Float[Array, "batch height width channels"], *, train: bool = False
    ) -> Logits | TrainingLogits:
        """Return the logits of every pixel, in float32."""
        return self.decode(self.features(images, train=train), images.shape[1:3], train=train)

    def decode(
        self, features: Features, size: tuple[int, int], *, train: bool = False
    ) -> Logits | TrainingLogits:
        """Return the logits of every pixel from the features of the backbone.

        size: (height, width) of the images.
        """
        maps, size = self._maps(features), tuple(size)
        logits = resize_map(self.head(features, maps, train=train), size, BILINEAR)
        if not self.auxiliary_head or not (train or self.is_initializing()):
            return logits
        auxiliary = resize_map(self.auxiliary(features, maps, train=train), size, BILINEAR)
        return TrainingLogits(logits, auxiliary) if train else logits

    def head_roles(self) -> Roles:
        """Return the roles of the parameters beside the backbone."""
        roles: dict[str, Any] = {"map_norms_*": LayerNorm.ROLES} if self.norm_maps else {}
        roles["head"] = DECODERS[self.decoder].ROLES
        return {**roles, "auxiliary": AuxiliaryDecoder.ROLES} if self.auxiliary_head else roles

    @property
    def of_classes(self) -> tuple[str, ...]:
        """Paths of the parameters that belong to the classes."""
        of_head = ("class_tokens", "mask_norm") if self.decoder == "mask" else ("classifier",)
        return (*(f"head/{name}" for name in of_head), "auxiliary/classifier")

    def _maps(self, features: Features) -> Maps:
        """Return the maps of a pyramid, finest first; none if no decoder reads them."""
        if self.decoder not in _OF_PYRAMIDS and not self.auxiliary_head:
            return ()
        if features.stages is None:
            raise ValueError(
                f"{type(self).__name__}: decoder={self.decoder!r} reads the maps of a pyramid, and "
                f"{self.backbone_name} has none; use decoder='linear' or 'mask' without an "
                "auxiliary head, or a pyramid such as MiT-B0."
            )
        if not self.norm_maps:
            return features.stages
        *finer, last = features.stages
        normed = [norm(x) for norm, x in zip(self.map_norms, finer, strict=True)]
        return (*normed, self.backbone.norm(last))

    def _head(self) -> Factory:
        """Return the factory of the decoder."""
        return self._of_decoder(DECODERS[self.decoder], self.decoder_width)

    def _of_decoder(self, decoder: type[nn.Module], width: int | None) -> Factory:
        known = {
            "width": width,
            "depth": self.decoder_depth,
            "heads": self.decoder_heads,
            "dropout": self.decoder_dropout,
            "drop_path": self.decoder_drop_path,
            "norm_eps": self.decoder_norm_eps,
            "dtype": self.dtype,
        }
        known = {name: value for name, value in known.items() if value is not None}
        return factory(decoder, known, classes=self.num_classes)
