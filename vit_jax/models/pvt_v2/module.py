"""PVT v2 (Wang et al. 2022) and MiT, the encoder of SegFormer (Xie et al. 2021): one pyramid.

- Stages are those of PVT: attention of all of a map to a shrunk map of keys. Patches overlap, MLPs
  have a depthwise convolution, and there are no positions and no class token.
- Every stage ends in a norm, and the next one begins with what is normed. `features` gives the
  normed maps, of strides 4, 8, 16 and 32, which decoders read.
- MiT has narrower MLPs. Nothing else distinguishes the two.
- Images of any size go in: convolutions pad, and sides of maps are rounded up.
- Two epsilons: the authors of both give 1e-6 to the norms of blocks and stages, and torch's own
  1e-5 to those after patches and reductions; so does timm. transformers has its `layer_norm_eps`
  in all of a PVT v2, and 1e-5 in all of a SegFormer, whatever its configuration says.
"""

import dataclasses
import math

from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.errors import shown
from vit_jax.models import validation
from vit_jax.models.attention.implementations import Implementation
from vit_jax.models.block import Block, Remat, Stage, block_factory, remat_block
from vit_jax.models.description.blocks import BlockInfo, pyramid_blocks
from vit_jax.models.description.receptive import Steps, global_steps
from vit_jax.models.description.roles import Blocks, Role, Roles, kernel_and_bias
from vit_jax.models.features import AttentionClassifier, Features, features_of_map
from vit_jax.models.fields import (
    Classes,
    Count,
    Counts,
    DepthsOfStages,
    DtypeName,
    Factory,
    Positive,
    Positives,
    Size,
    factory,
)
from vit_jax.models.initializers import INIT_SCHEMES, SchemeName
from vit_jax.models.layers.mlp import Activation
from vit_jax.models.layers.norm import LayerNorm
from vit_jax.models.layers.residual import stage_drop_path_rates
from vit_jax.models.pvt_v2.layers import (
    POOLED_SIDE,
    DepthwiseMlp,
    MapAttention,
    OverlappingPatches,
)


class PVTv2(AttentionClassifier):
    """Pyramid Vision Transformer, version 2; the defaults are PVTv2-B2 with 1000 classes.

    `model.apply({"params": params}, images)` takes float32 images `(batch, height, width,
    channels)`, already normalised, and gives float32 logits `(batch, classes)`; `method="features"`
    gives `Features`. Training wants `train=True` and, where a rate is not 0, the rng `"dropout"`.

    Parameters: `patch_embed/{conv, norm}`, `stages_{i}/downsample/{conv, norm}` from the second
    stage on, `stages_{i}/blocks_{j}/{norm1, attn/{qkv, out, sr, sr_norm}, norm2, mlp/{fc1, conv,
    fc2}}`, `stages_{i}/norm` and `head`. `sr` and `sr_norm` are there where a stage's reduction is
    more than 1, and everywhere with linear attention.

    Raises:
        ValueError: at construction if fields do not fit each other, at the call if the images do
            not fit the model.
    """

    num_classes: Classes = 1000  # 0: no head, the pooled features come out
    image_size: Size = 224  # for costs and records; any other size goes in as well
    in_channels: Count = 3
    # One number for each stage; there may be more or fewer than four.
    patch_sizes: Counts = (7, 3, 3, 3)  # kernels of the patch embeddings; odd
    strides: Counts = (4, 2, 2, 2)  # of the patch embeddings
    widths: Counts = (64, 128, 320, 512)  # of a token
    depths: DepthsOfStages = (3, 4, 6, 3)  # blocks
    heads: Counts = (1, 2, 5, 8)
    mlp_ratios: Positives = (8, 8, 4, 4)  # hidden width of the MLP, as a multiple of width
    reductions: Counts = (8, 4, 2, 1)  # sides of the map that keys and values shrink by
    linear_attention: bool = False  # 7 x 7 keys in place of reductions, and a ReLU in MLPs
    qkv_bias: bool = True
    attention_dropout: float = 0.0  # on attention weights
    projection_dropout: float = 0.0  # after the attention's output projection
    mlp_dropout: float = 0.0  # in the MLP, after the activation and after fc2
    drop_path: float = 0.0  # of the last block, from 0 linearly over all; the authors: 0.1 to 0.3
    activation: Activation = "gelu"
    norm_eps: Positive = 1e-6  # of the norms in blocks and at the end of stages
    embed_norm_eps: Positive = 1e-5  # of the norms after patches and reductions: torch's own
    init_scheme: SchemeName = "normal02"  # the authors', of both
    dtype: DtypeName = "float32"  # of the computation; parameters and logits are always float32
    attention_impl: Implementation = "auto"  # or "xla", "chunked", "cudnn", "pallas"
    remat: Remat = "none"  # the backward pass computes again "full" blocks, or all but "dots"

    def __post_init__(self):
        _check_fields(self)
        super().__post_init__()

    def setup(self):
        self.patch_embed = self._patches(0)()
        rates = stage_drop_path_rates(self.drop_path, self.depths)
        norm = factory(LayerNorm, epsilon=self.norm_eps, dtype=self.dtype)
        self.stages = [
            Stage(
                tuple(self._block(i, rate) for rate in rates[i]),
                self._patches(i) if i else None,
                norm,
            )
            for i in range(len(self.depths))
        ]
        # The head computes in float32 whatever the blocks do: logits are what losses are made of.
        if self.num_classes:
            kernel_init = INIT_SCHEMES[self.init_scheme].head
            self.head = nn.Dense(self.num_classes, kernel_init=kernel_init)

    def features(
        self,
        images: Float[Array, "batch height width channels"],
        *,
        train: bool = False,
        attention_weights: bool = False,
    ) -> Features:
        """The normed maps of the stages, and the mean of the last."""
        validation.check_images(self, images)
        _check_size(self, tuple(images.shape[1:3]))
        x, maps = self.patch_embed(images), []
        for stage in self.stages:
            x = stage(x, train=train, attention_weights=attention_weights)
            maps.append(x)
        return features_of_map(x, x.mean(axis=(1, 2)), maps)  # sums in float32, also for bfloat16

    def roles(self) -> Roles:
        """Return the roles of the parameters, in the order of the forward pass."""
        block = {**Block.ROLES, "attn": MapAttention.ROLES, "mlp": DepthwiseMlp.ROLES}
        return {
            "patch_embed": OverlappingPatches.ROLES,
            "stages_*": {
                "downsample": OverlappingPatches.ROLES_BETWEEN,
                "blocks_*": Blocks(block),
                "norm": LayerNorm.ROLES,
            },
            "head": kernel_and_bias(Role.HEAD),
        }

    def block_infos(self, image_size: int | tuple[int, int] | None = None) -> tuple[BlockInfo, ...]:
        """Return the blocks, for images of a size in pixels; None: the model's own."""
        size = validation.pair(image_size or self.image_size)
        blocks = pyramid_blocks(size, self.depths, self.strides, "attention")
        return tuple(
            dataclasses.replace(block, keys_grid=self._keys(block.stage, block.grid), keys_prefix=0)
            for block in blocks
        )

    def receptive_steps(
        self, image_size: int | tuple[int, int] | None = None, axis: int = 0
    ) -> Steps:
        """Return the steps to every block's output: attention sees the whole image."""
        blocks = self.block_infos(image_size)
        return global_steps((block.path, block.patch_size[axis]) for block in blocks)

    def _patches(self, stage: int) -> Factory:
        """Return the factory of a stage's patch embedding."""
        return factory(
            OverlappingPatches,
            self,
            width=self.widths[stage],
            kernel_size=self.patch_sizes[stage],
            stride=self.strides[stage],
        )

    def _block(self, stage: int, drop_path: float) -> Factory:
        """Return the factory of a block of a stage."""
        return block_factory(
            self,
            MapAttention,
            mlp_class=DepthwiseMlp,
            block=remat_block(Block, self.remat, in_loop=False),
            heads=self.heads[stage],
            mlp_width=int(self.widths[stage] * self.mlp_ratios[stage]),
            reduction=self.reductions[stage],
            drop_path=drop_path,
        )

    def _keys(self, stage: int, grid: tuple[int, int]) -> tuple[int, int]:
        """Return (height, width) of a stage's keys."""
        if self.linear_attention:
            return (POOLED_SIDE, POOLED_SIDE)
        return tuple(side // self.reductions[stage] for side in grid)


_OF_STAGES = ("patch_sizes", "strides", "widths", "depths", "heads", "mlp_ratios", "reductions")


def _check_fields(model: PVTv2) -> None:
    """Raise ValueError for fields that are invalid or do not fit each other."""
    name = type(model).__name__
    validation.check_types(model)
    validation.check_stages(model, _OF_STAGES)
    for i, side in enumerate(model.patch_sizes):
        if side % 2 == 0:
            raise ValueError(
                f"{name}: patch_sizes[{i}]={side} must be odd, or the map would shift; use "
                f"{side - 1 or 1} or {side + 1}."
            )
    size = validation.pair(model.image_size)
    _check_size(model, size)
    validation.check_tokens(name, tuple(-(-side // model.strides[0]) for side in size))


def _check_size(model: PVTv2, size: tuple[int, int]) -> None:
    """Raise ValueError for images (height, width) in which a stage would have no keys."""
    if model.linear_attention:
        return
    strides = (math.prod(model.strides[: i + 1]) for i in range(len(model.strides)))
    # Of a side, ceil(side / stride) places are left, at least as many as the reduction.
    needed = max(s * (r - 1) + 1 for s, r in zip(strides, model.reductions, strict=True))
    if min(size) < needed:
        raise ValueError(
            f"{type(model).__name__}: images of {size[0]} x {size[1]} pixels (height x width) "
            f"leave a map smaller than its reduction, one of {shown(model.reductions)}, so that "
            f"there are no keys; use at least {needed} pixels a side, or smaller reductions."
        )
