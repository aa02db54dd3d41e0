"""The encoder of V-JEPA 2: a ViT of clips, without class token and without a table of positions.

Assran et al. 2025, "V-JEPA 2: Self-Supervised Video Models Enable Understanding, Prediction and
Planning". Input is `(batch, frames, height, width, channels)`.

- A patch is a tubelet of two frames (`tubelet_size`), whose kernel has the channels of the frames
  side by side. All tubelets of a clip attend to each other.
- Queries and keys are turned by time, row and column (`rotary`), so that clips of any length and
  size are taken without any table.
- The published encoder has no head. A head here reads the mean of all tokens. The authors' probes
  are attention layers on the frozen encoder instead (section 5), which are not here.
- The predictor, which is used in pre-training and planning, is not here either.
"""

from typing import ClassVar

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models import validation
from vit_jax.models.attention.implementations import Implementation
from vit_jax.models.block import Block, Remat, block_factory, remat_block, run_blocks
from vit_jax.models.description.blocks import BlockInfo, Stem
from vit_jax.models.description.receptive import Steps, global_steps
from vit_jax.models.description.roles import Blocks, Role, Roles, kernel_and_bias
from vit_jax.models.features import AttentionClassifier, Features
from vit_jax.models.fields import (
    Classes,
    Count,
    Depth,
    DtypeName,
    Factory,
    Hidden,
    Positive,
    Size,
    factory,
    pair,
)
from vit_jax.models.initializers import INIT_SCHEMES, SchemeName
from vit_jax.models.layers.mlp import Activation
from vit_jax.models.layers.norm import LayerNorm, NormType, make_norm
from vit_jax.models.layers.patch_embed import PatchEmbed
from vit_jax.models.layers.residual import drop_path_rates
from vit_jax.models.layers.tubelets import count_steps, join_frames
from vit_jax.models.vjepa2.rotary import LEAST_CHANNELS, ClipRotary


class VJEPA2(AttentionClassifier):
    """Encoder of V-JEPA 2; the defaults are V-JEPA2-L/16, of 64 frames of 256 pixels.

    `model.apply({"params": params}, clips)` takes float32 clips `(batch, frames, height, width,
    channels)`, already normalised, and gives float32 logits `(batch, classes)`, without classes the
    mean of the tokens `(batch, width)`; `method="features"` gives `Features`. Training wants
    `train=True` and, where a rate is not 0, the rng `"dropout"`.

    Parameters: those of a ViT but for the class token and the positions. The kernel of
    `patch_embed` is `(patch_height, patch_width, tubelet_size * channels, width)`.

    The authors begin the last layers of block i, counted from 1, smaller by `(2 i)^0.5`; here all
    blocks begin alike.

    Raises:
        ValueError: at construction if fields do not fit each other, at the call if the clips do
            not fit the model; the sentence names the nearest valid sizes.
    """

    pool: ClassVar[str] = "mean"
    prefix: ClassVar[int] = 0

    num_classes: Classes = 0  # 0: no head, the mean of the tokens comes out
    image_size: Size = 256  # of a frame, that the model is usually given; (h, w) too
    patch_size: Size = 16
    in_channels: Count = 3
    num_frames: Count = 64  # that the model is usually given
    tubelet_size: Count = 2  # frames of a patch
    width: Count = 1024  # of a token
    depth: Depth = 24  # blocks
    heads: Count = 16
    mlp_ratio: Positive = 4.0  # hidden width of the MLP, as a multiple of width
    mlp_width: Hidden | None = None  # the same as a number
    qkv_bias: bool = True
    attention_dropout: float = 0.0  # on attention weights
    projection_dropout: float = 0.0  # after the attention's output projection
    mlp_dropout: float = 0.0  # in the MLP, after the activation and after fc2
    drop_path: float = 0.0  # of the last block, from 0 linearly over depth; a whole clip's branch
    activation: Activation = "gelu"
    norm_type: NormType = "layer"
    norm_eps: Positive = 1e-6
    init_scheme: SchemeName = "trunc02"
    dtype: DtypeName = "float32"  # of the computation; parameters and logits are always float32
    attention_impl: Implementation = "auto"  # or "xla", "chunked", "cudnn", "pallas"
    remat: Remat = "none"  # the backward pass computes again "full" blocks, or all but "dots"

    def __post_init__(self):
        _check_fields(self)
        super().__post_init__()

    def setup(self):
        self.patch_embed = factory(PatchEmbed, self, patch_size=pair(self.patch_size))()
        self.blocks = [self._block(i)() for i in range(self.depth)]
        self.norm = make_norm(self)
        # The head computes in float32 whatever the blocks do: logits are what losses are made of.
        if self.num_classes:
            kernel_init = INIT_SCHEMES[self.init_scheme].head
            self.head = nn.Dense(self.num_classes, kernel_init=kernel_init)

    def features(
        self,
        images: Float[Array, "batch frames height width channels"],
        *,
        train: bool = False,
        attention_weights: bool = False,
    ) -> Features:
        """Return the tokens of all tubelets after the last norm, `(batch, steps * patches, width)`.

        Their mean is `pooled`.
        """
        x, grid = self.embed(images, train=train)
        asked = {"train": train, "attention_weights": attention_weights, "grid": grid}
        x = self.norm(run_blocks(self.blocks, x, (), **asked))
        steps = images.shape[1] // self.tubelet_size
        pooled = x.astype(jnp.float32).mean(axis=1).astype(x.dtype)
        return Features(x, pooled, grid, frames=steps)

    def embed(
        self, images: Float[Array, "batch frames height width channels"], *, train: bool = False
    ) -> tuple[Float[Array, "batch tokens width"], tuple[int, int]]:
        """Return the tokens that enter the first block, and the grid of a frame's patches."""
        validation.check_images(self, images)
        name, patch = type(self).__name__, pair(self.patch_size)
        validation.check_patches_fit(name, tuple(images.shape[2:4]), patch)
        count_steps(name, images.shape[1], self.tubelet_size)
        x = self.patch_embed(join_frames(images, self.tubelet_size))
        return x.reshape(images.shape[0], -1, self.width), tuple(x.shape[1:3])

    def _block(self, number: int) -> Factory:
        """Return the factory of a block."""
        return block_factory(
            self,
            block=remat_block(Block, self.remat, in_loop=False),
            mlp_width=self.hidden_width,
            drop_path=drop_path_rates(self.drop_path, self.depth)[number],
            positions=ClipRotary(),
        )

    def roles(self) -> Roles:
        """Return the roles of the parameters, in the order of the forward pass."""
        return {
            "patch_embed": PatchEmbed.ROLES,
            "blocks_*": Blocks(Block.ROLES),
            "norm": LayerNorm.ROLES,
            "head": kernel_and_bias(Role.HEAD),
        }

    def block_infos(self, image_size: int | tuple[int, int] | None = None) -> tuple[BlockInfo, ...]:
        """Return the blocks, for frames of a size in pixels; None: the model's own."""
        (height, width), patch = pair(image_size or self.image_size), pair(self.patch_size)
        grid = (height // patch[0], width // patch[1])
        steps = self.num_frames // self.tubelet_size
        return tuple(
            BlockInfo(f"blocks_{i}", "attention", grid, patch, frames=steps)
            for i in range(self.depth)
        )

    def receptive_steps(
        self, image_size: int | tuple[int, int] | None = None, axis: int = 0
    ) -> Steps:
        """Return the steps to every block's output: attention sees whole clips."""
        blocks = self.block_infos(image_size)
        return global_steps((block.path, block.patch_size[axis]) for block in blocks)

    @property
    def patch_stem(self) -> Stem:
        """The patch embedding."""
        return Stem(("patch_embed",), self.width, pair(self.patch_size))

    @property
    def hidden_width(self) -> int:
        """Width of the hidden layer of the MLPs."""
        return self.mlp_width or int(self.width * self.mlp_ratio)


def _check_fields(model: VJEPA2) -> None:
    """Raise ValueError for fields that are invalid or do not fit each other."""
    name = type(model).__name__
    validation.check_types(model)
    if model.mlp_width is None:
        validation.check_hidden(name, "mlp_ratio", model.mlp_ratio, model.width)
    size, patch = pair(model.image_size), pair(model.patch_size)
    validation.check_patches_fit(name, size, patch)
    validation.check_multiple(name, "width", model.width, "heads", model.heads)
    if model.width // model.heads < LEAST_CHANNELS:
        raise ValueError(
            f"{name}: width={model.width} and heads={model.heads} are "
            f"{model.width // model.heads} channels a head, and rotary positions need at least "
            f"{LEAST_CHANNELS}; use at most {max(model.width // LEAST_CHANNELS, 1)} heads, or a "
            "larger width."
        )
    steps = count_steps(name, model.num_frames, model.tubelet_size)
    validation.check_tokens(name, (steps * (size[0] // patch[0]), size[1] // patch[1]))
