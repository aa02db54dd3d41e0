"""DETR: detection as a set of predictions, by an encoder and a decoder on the features of any
backbone ("End-to-End Object Detection with Transformers", Carion et al. 2020).

- The last map of the backbone is projected to the width of the transformer. Learned queries attend
  to it in the decoder, and each becomes one prediction.
- The predictions of the earlier layers of the decoder come out too, as `Detections.aux`: all layers
  share a norm and the heads.
- `freeze_norms` is DETR's way with a ResNet: the statistics, scales and biases of its norms stay as
  they are, and so do its stem and its first stage.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from vit_jax.models.attention.multi_head import Attention
from vit_jax.models.block import Block, block_factory, run_blocks
from vit_jax.models.dense import DETECTION, DenseModel
from vit_jax.models.description.roles import Blocks, Role, Roles, kernel_and_bias
from vit_jax.models.detection.heads import Detections, MlpHead
from vit_jax.models.detection.transformer import (
    DecoderLayer,
    SineAttention,
    positions_of,
    shrunk_mask,
)
from vit_jax.models.features import Features
from vit_jax.models.fields import Classes, Count, Depth, Hidden, Positive, Rate, factory
from vit_jax.models.initializers import SchemeName
from vit_jax.models.layers.convolutions import torch_linear
from vit_jax.models.layers.mlp import Activation, Mlp
from vit_jax.models.layers.norm import LayerNorm
from vit_jax.models.resnet.module import ResNet
from vit_jax.models.validation import check_multiple


class DETR(DenseModel):
    """Transformer from the features of a backbone to `Detections`; the defaults are DETR-R50.

    Parameters beside the backbone: `input_proj`, `encoder_{i}`, `decoder_{i}`, `decoder_norm`,
    `query_positions (queries, width)`, `class_head` and `box_head`.

    Raises:
        ValueError: at construction, for a width that is no multiple of 4 or of the heads, and for
            `freeze_norms` of a backbone that is no ResNet.

    Source: Carion et al. 2020, and the authors' code.
    """

    num_classes: Classes = 91  # ids of COCO's 80 classes go to 90
    image_size: int | tuple[int, int] = 800
    backbone_name: str = "ResNet-50"
    queries: Count = 100  # the most objects that are found
    width: Count = 256
    heads: Count = 8
    encoder_depth: Depth = 6
    decoder_depth: Depth = 6
    mlp_width: Hidden = 2048
    dropout: Rate = 0.1  # on attention weights, behind attention, and twice in the MLP
    activation: Activation = "relu"
    norm_eps: Positive = 1e-5
    init_scheme: SchemeName = "vit"  # Xavier, as in the authors' code
    freeze_norms: bool = False

    gives: ClassVar[str] = DETECTION

    def __post_init__(self):
        super().__post_init__()
        check_multiple("DETR", "width", self.width, "heads", self.heads)
        if self.freeze_norms and not isinstance(self.make_backbone(), ResNet):
            raise ValueError(
                f"DETR: freeze_norms=True is for a ResNet, and backbone_name="
                f"{self.backbone_name!r} is none; use False."
            )
        check_multiple("DETR", "width", self.width, "the parts of sine positions", 4)

    def setup(self):
        super().setup()
        drops = dict.fromkeys(
            ("attention_dropout", "projection_dropout", "mlp_dropout"), self.dropout
        )
        block = block_factory(self, SineAttention, norm_order="post", **drops)
        self.input_proj = nn.Dense(self.width, kernel_init=torch_linear, dtype=self.dtype)
        self.encoder = [block(name=f"encoder_{i}") for i in range(self.encoder_depth)]
        attn = {name: drops[name] for name in ("attention_dropout", "projection_dropout")}
        layer = factory(
            DecoderLayer,
            self,
            attn=factory(Attention, self, **attn),
            mlp=factory(Mlp, self, mlp_dropout=self.dropout),
        )
        self.decoder = [layer(name=f"decoder_{i}") for i in range(self.decoder_depth)]
        self.decoder_norm = LayerNorm(epsilon=self.norm_eps, dtype=self.dtype)
        self.query_positions = self.param(
            "query_positions", nn.initializers.normal(1.0), (self.queries, self.width)
        )
        self.class_head = MlpHead(self.num_classes + 1, self.width, depth=1)
        self.box_head = MlpHead(4, self.width)

    def __call__(
        self,
        images: Float[Array, "batch height width channels"],
        *,
        pixel_mask: Bool[Array, "batch height width"] | None = None,
        train: bool = False,
        attention_weights: bool = False,
    ) -> Detections:
        """Return a class and a box for every query, and those of the decoder's earlier layers.

        pixel_mask: False for pixels of padding, beside images that are smaller than the batch. No
            token attends to padding, positions are those within the image, and boxes are shares of
            the image without it.
        """
        features = self.features(images, train=train)
        asked = {"train": train, "attention_weights": attention_weights}
        asked |= {"pixel_mask": pixel_mask}
        return self.decode(features, images.shape[1:3], **asked)

    def decode(
        self,
        features: Features,
        size: tuple[int, int],
        *,
        pixel_mask: Bool[Array, "batch height width"] | None = None,
        train: bool = False,
        attention_weights: bool = False,
    ) -> Detections:
        """Return the same from the features of the backbone.

        size: (height, width) of the images; boxes are shares of it.
        """
        del size
        asked = {"train": train, "attention_weights": attention_weights}
        if features.stages is None:
            tokens, grid = features.tokens[:, features.prefix :], features.grid
        else:
            last = features.stages[-1]
            tokens, grid = last.reshape(last.shape[0], -1, last.shape[-1]), last.shape[1:3]
        mask = None
        if pixel_mask is not None:
            mask = shrunk_mask(pixel_mask, grid).reshape(len(pixel_mask), -1)
        more = {"grid": grid, "key_mask": mask}
        memory = run_blocks(self.encoder, self.input_proj(tokens), (), **more, **asked)
        places = positions_of(grid, self.width, mask)
        queries = self.query_positions[None]
        x = jnp.zeros((memory.shape[0], *queries.shape[1:]), memory.dtype)
        layers = []
        for layer in self.decoder:
            x = layer(x, memory, queries, places, context_mask=mask, **asked)
            layers.append(self.decoder_norm(x))
        *earlier, last = map(self._detections, layers)
        return last.replace(aux=tuple(earlier))

    def features(
        self,
        images: Float[Array, "batch height width channels"],
        *,
        train: bool = False,
        **asked: bool,
    ) -> Features:
        """Return the features of the backbone, with `freeze_norms` as in evaluation."""
        return super().features(images, train=train and not self.freeze_norms, **asked)

    @property
    def frozen_paths(self) -> tuple[str, ...]:
        """Parameters that training leaves as they are, as regular expressions of their paths."""
        if not self.freeze_norms:
            return ()
        return (r"backbone/.*norm\w*/(scale|bias)", r"backbone/(stem|stages_0)/.*")

    def _detections(self, x: Float[Array, "batch queries width"]) -> Detections:
        return Detections(self.class_head(x), jax.nn.sigmoid(self.box_head(x)))

    def head_roles(self) -> Roles:
        """Return the roles of the parameters beside the backbone."""
        return {
            "input_proj": kernel_and_bias(Role.LINEAR),
            "encoder_*": Blocks(Block.ROLES),
            "query_positions": Role.TOKEN,
            "decoder_*": Blocks(DecoderLayer.ROLES),
            "decoder_norm": LayerNorm.ROLES,
            "class_head": MlpHead.ROLES,
            "box_head": MlpHead.ROLES,
        }
