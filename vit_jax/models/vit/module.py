"""Vision Transformer of "An Image is Worth 16x16 Words" (Dosovitskiy et al. 2021) and variants.

- One module covers ViT, the DeiT, DINOv2, CLIP and SigLIP towers, and torch's post-norm encoder:
  every difference is a field, with its reason beside it.
- Images may have another size than the model was built for if they are multiples of the patch: the
  learned table is resized by grid, with height and width separate. Other sizes are an error; no
  image is cropped or padded silently.
- `features` gives all tokens and the pooled vector; `__call__` puts the classifier on top. A
  distilled model has two: in training both heads' logits come out, otherwise their mean.
- Every block's output is sown as `intermediates/blocks_i/out`, attention weights on request (linen
  wraps what is sown in a tuple; here of one).
- What saves memory or compilation changes no number: `attention`, `remat`, `scan_layers`. With the
  last, what was one entry for each block is one entry `blocks` with a leading axis of depth, in
  parameters and intermediates alike; `layout` converts and reads both.
"""

from typing import Annotated, Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from vit_jax.models import validation
from vit_jax.models.attention.implementations import Implementation
from vit_jax.models.attention.multi_head import QkNorm, QkvBias
from vit_jax.models.attention.types import AttentionKind, Seed
from vit_jax.models.block import (
    Block,
    NormOrder,
    Remat,
    block_factory,
    make_blocks,
    remat_block,
    run_blocks,
)
from vit_jax.models.features import DistilledLogits, Features
from vit_jax.models.fields import (
    Choice,
    Classes,
    Count,
    Depth,
    DtypeName,
    Factory,
    Hidden,
    HiddenPerBlock,
    PerBlock,
    Positive,
    Size,
    Whole,
    factory,
    of_block,
)
from vit_jax.models.initializers import INIT_SCHEMES, SchemeName
from vit_jax.models.layers.linear import Rank
from vit_jax.models.layers.mlp import Activation, MlpKind
from vit_jax.models.layers.norm import NormType, make_norm
from vit_jax.models.layers.patch_embed import PatchEmbed, PatchMethod
from vit_jax.models.layers.pooling import AttentionPooling, mean_of_patches
from vit_jax.models.positions.rotary import RotaryKind
from vit_jax.models.positions.tables import ResizeMethod, resize_positions
from vit_jax.models.positions.types import (
    POSITION_KINDS,
    AxisTables,
    PositionKind,
    combine,
    fixed_table,
)
from vit_jax.models.tokens import fields as token_fields
from vit_jax.models.tokens.reduction import TokenMap, drop_patches
from vit_jax.models.vit.description import DescribedViT

Pool = Annotated[str, Choice("cls", "mean", "cls+mean", "map", "none")]
PoolNorm = Annotated[str, Choice("before", "after")]
PosCombine = Annotated[str, Choice("add", "concat")]
Registers = Annotated[int, Whole(0)]


class ViT(DescribedViT, nn.Module):
    """Vision Transformer; the defaults are ViT-B/16 at 224 pixels with 1000 classes.

    `model.apply({"params": params}, images)` takes float32 images `(batch, height, width,
    channels)`, already normalised, and gives float32 logits `(batch, classes)`; `method="features"`
    gives `Features`. Training wants `train=True` and, where a rate is not 0, the rng `"dropout"`; a
    distilled model then gives `DistilledLogits`.

    Raises:
        ValueError: at construction if fields do not fit each other, at the call if the images do
            not fit the model; the message has both numbers and the nearest valid ones.
    """

    num_classes: Classes = 1000  # 0: no head, the pooled features come out
    image_size: Size = 224  # the size the position table is built for; (h, w) too
    patch_size: Size = 16  # (h, w) for spectrograms and other oblong things
    in_channels: Count = 3  # 1 for grey images, more for satellites
    width: Count = 768  # of a token, all through the network
    depth: Depth = 12  # blocks
    heads: PerBlock = 12  # or one number for every block; head_dim is 64 in nearly all sizes
    head_dim: Count | None = None  # None: width / heads
    mlp_ratio: Positive = 4.0  # hidden width of the MLP, as a multiple of width
    mlp_width: HiddenPerBlock | None = None  # the same as a number, or one for every block
    pool: Pool = "cls"  # "mean" of patches, "cls+mean" joined, "map", "none" for every token
    pool_heads: Count | None = None  # of the attention pooling "map"; None: heads
    pool_mlp_width: Hidden | None = None  # of its MLP; None: that of the last block
    pool_prefix: bool = False  # whether "map" reads prefix tokens too (Perception Encoder)
    class_token: bool | None = None  # None: there is one exactly if the pool reads it
    pool_norm: PoolNorm = "before"  # "after": pool first, then norm, timm's fc_norm
    distilled: bool = False  # DeiT's second token and second head, which learn from a teacher
    registers: Registers = 0  # spare tokens (Darcet et al. 2024); 4 in DINOv2-reg
    positions: PositionKind = "learned"  # or fixed, "relative", "rotary", "none"
    pos_on_cls: bool = True  # False: positions are for patches only (big_vision, DeiT III)
    pos_combine: PosCombine = "add"  # "concat": positions are the last channels
    pos_width: int | None = None  # channels that "concat" gives to positions; None: width / 4
    rotary: RotaryKind = "none"  # rotation beside vectors, named by origin: see `positions/rotary`
    rotary_base: Positive | None = None  # None: that of the origin
    rotary_grid: Count | None = None  # side that coordinates are scaled to; None: as the origin
    norm_type: NormType = "layer"  # or "rms", of all norms
    norm_order: NormOrder = "pre"  # "post" is torch's norm_first=False, "branch" Swin V2's
    parallel: bool = False  # attention and MLP read the same tokens (ViT-22B)
    patch_norm: bool = False  # a norm of patches before they get positions: AIMv2
    final_norm: bool = True  # a norm behind the blocks, before or after pooling
    embed_norm: bool = False  # a norm between embedding and blocks: CLIP's ln_pre
    patch_bias: bool = True  # CLIP's patch convolution has none
    representation_size: Count | None = None  # dense + tanh before the head, as in 2020
    attention_dropout: float = 0.0  # on attention weights
    projection_dropout: float = 0.0  # after the attention's output projection
    mlp_dropout: float = 0.0  # in the MLP, after the activation and after fc2
    position_dropout: float = 0.0  # on tokens once positions are added
    patch_dropout: token_fields.Dropped = 0.0  # share of patches left out at random in training
    drop_path: float = 0.0  # stochastic depth: rate of the last block, from 0 linearly over depth
    layer_scale: Positive | None = None  # initial value; deep DeiT III and DINOv2 use 1e-4 to 1e-5
    qkv_bias: QkvBias = True  # "qv": none for keys (BEiT, EVA-02)
    qk_norm: QkNorm = False  # keeps attention logits bounded in very large models (ViT-22B)
    learned_temperature: bool = False  # a factor of the logits for every head, for small datasets
    attention_norm: bool = False  # a norm before the attention's output projection (EVA-02's CLIP)
    mlp_norm: bool = False  # a norm before the MLP's second layer (EVA-02 B and L)
    linear_bias: bool = True  # of the attention's output projection and of the MLP
    mlp: MlpKind = "plain"  # "swiglu": the hidden layer has a gate (DINOv2's giant)
    lora_rank: Rank = 0  # of low-rank additions to qkv and the MLP, for fine-tuning; 4 to 16 do
    activation: Activation = "gelu"  # exact; "gelu_tanh" Google, "quick_gelu" CLIP, "relu", "silu"
    norm_eps: Positive = 1e-6  # of every norm; torch's default would be 1e-5
    init_scheme: SchemeName = "vit"  # "trunc02" DeiT, "normal02" small CIFAR models
    patch_embed_method: PatchMethod = "conv"  # or "dense": the same numbers by one matmul
    pos_resize: ResizeMethod = "cubic"  # of the learned table: as where the weights are from
    dtype: DtypeName = "float32"  # of the computation; parameters and logits are always float32
    attention_type: AttentionKind = "softmax"  # what blocks do with q, k, v; see `attention/types`
    performer_features: Count = 256  # random ones; the error falls as they rise
    performer_seed: Seed = 0  # what they are made from, the same at every call
    linformer_rank: Count = 64  # mixtures that stand for all keys and values in "linformer"
    local_window: Count = 7  # odd; patches along each side of what a patch sees in "local"
    tome_r: token_fields.Pairs = 0  # pairs of similar tokens that a block merges; or one for each
    tome_proportional: bool = True  # attention counts a merged token as those it stands for
    keep_ratio: token_fields.Kept = 1.0  # of patches, at three blocks; or one for each block
    keep_fused: bool = True  # the others go on as one token (EViT)
    attention_impl: Implementation = "auto"  # or "xla", "chunked", "cudnn", "pallas"; of the blocks
    remat: Remat = "none"  # the backward pass computes again "full" blocks, or all but "dots"
    scan_layers: bool = False  # one traced block that runs `depth` times; parameters are stacked

    def __post_init__(self):
        validation.check_fields(self)
        super().__post_init__()

    def setup(self):
        scheme, width = INIT_SCHEMES[self.init_scheme], self.width
        self.patch_embed = self._make_patch_embed()
        if self.has_class_token:
            shape = (1, 1, self.front_width)
            self.cls_token = self.param("cls_token", scheme.class_token, shape)
        if self.distilled:  # drawn like registers, apart from a class token that may begin at zero
            shape = (1, 1, self.front_width)
            self.dist_token = self.param("dist_token", scheme.registers, shape)
        if self.registers:
            self.reg_tokens = self.param("reg_tokens", scheme.registers, (1, self.registers, width))
        if self.positions == "learned":
            height, columns = self.built_grid
            rows = self.num_prefix_positions + height * columns
            shape = (1, rows, self.pos_channels)
            self.pos_embed = self.param("pos_embed", scheme.positions, shape)
        elif self.positions in ("learned2d_sum", "learned2d_concat"):
            self.pos_embed = AxisTables(
                self.built_grid,
                self.pos_channels,
                self.num_prefix_positions,
                self.positions == "learned2d_concat",
                self.pos_resize,
                self.init_scheme,
            )
        self.pos_dropout = nn.Dropout(self.position_dropout)
        if self.patch_norm:
            self.stem_norm = make_norm(self)
        if self.embed_norm:
            self.pre_norm = make_norm(self)
        self.blocks = make_blocks(map(self._block, range(self.depth)), scan=self.scan_layers)
        self.norm = make_norm(self) if self.final_norm else lambda x: x
        if self.pool == "map":
            self.map_head = self._attention_pooling()
        # The head computes in float32 whatever the blocks do: logits are what losses are made of.
        if self.representation_size:
            self.pre_logits = nn.Dense(self.representation_size, kernel_init=scheme.kernel)
        if self.num_classes:
            self.head = nn.Dense(self.num_classes, kernel_init=scheme.head)
            if self.distilled:
                self.head_dist = nn.Dense(self.num_classes, kernel_init=scheme.head)

    def __call__(
        self,
        images: Float[Array, "batch height width channels"],
        *,
        train: bool = False,
        attention_weights: bool = False,
    ) -> Float[Array, "batch classes"] | DistilledLogits:
        """Return logits in float32; with `num_classes=0` the input of the head, or of both heads.

        Of a distilled model both heads' with `train=True`, their mean otherwise.
        """
        features = self.features(images, train=train, attention_weights=attention_weights)
        if self.distilled:
            both = self._two_heads(features.tokens)
            return both if train else both.mean()
        x = features.pooled.astype(jnp.float32)
        if self.representation_size:
            x = jnp.tanh(self.pre_logits(x))
        return self.head(x) if self.num_classes else x

    def features(
        self,
        images: Float[Array, "batch height width channels"],
        *,
        train: bool = False,
        attention_weights: bool = False,
        key_mask: Bool[Array, "batch patches"] | None = None,
        blocks: tuple[int, ...] = (),
    ) -> Features:
        """Return all tokens after the last block, and the pooled vector, in the compute type.

        key_mask: False for patches that are padding; no token attends to them.
        blocks: numbers of blocks, from 0, whose outputs are given too; not with `scan_layers`.
        """
        x, grid = self.embed(images, train=train)
        if train and self.patch_dropout:
            x = drop_patches(x, self.prefix, self.patch_dropout, self.make_rng("dropout"))
        asked = {"train": train, "attention_weights": attention_weights}
        mask = None if key_mask is None else self._with_prefix(key_mask)
        more = {"grid": grid, "key_mask": mask, "kept": (kept := dict.fromkeys(blocks))}
        x = token_fields.start(self, x, key_mask=key_mask, blocks=blocks)
        x = run_blocks(self.blocks, x, self.drop_path_rates, **more, **asked)
        x, token_map = x if isinstance(x, tuple) else (x, TokenMap())
        if self.pool_norm == "before":
            x = self.norm(x)
        pooled = self.pool_tokens(x, key_mask=key_mask, sizes=token_map.sizes, **asked)
        if self.pool_norm == "after":
            pooled = self.norm(pooled)
        outputs = tuple(kept[number] for number in blocks) or None
        return Features(x, pooled, grid, self.prefix, None, outputs, source=token_map.source)

    def embed(
        self, images: Float[Array, "batch height width channels"], *, train: bool = False
    ) -> tuple[Float[Array, "batch tokens width"], tuple[int, int]]:
        """Images to the tokens that enter the first block, and the grid of their patches."""
        validation.check_images(self, images)
        validation.check_image_size(self, tuple(images.shape[1:3]))
        x = self._embed_patches(images, train=train)
        batch, *grid, channels = x.shape
        positions = self.position_table(tuple(grid))
        return self._with_positions(x.reshape(batch, -1, channels), positions, train), tuple(grid)

    def _with_positions(
        self,
        x: Float[Array, "batch patches channels"],
        positions: Float[Array, "#batch rows position_channels"] | None,
        train: bool,
    ) -> Float[Array, "batch tokens width"]:
        """Return the tokens that enter the first block: prefix tokens and embedded patches."""
        batch = x.shape[0]
        if self.patch_norm:
            x = self.stem_norm(x)
        if positions is not None:
            x = combine(x, positions[:, self.num_prefix_positions :], self.pos_combine)

        in_front = []
        if self.has_class_token:
            in_front.append(self.cls_token)
        if self.distilled:
            in_front.append(self.dist_token)
        if self.num_prefix_positions:
            in_front = [
                combine(token, positions[:, i : i + 1], self.pos_combine)
                for i, token in enumerate(in_front)
            ]
        if self.registers:
            in_front.append(self.reg_tokens)
        in_front = [jnp.broadcast_to(t, (batch, *t.shape[1:])).astype(x.dtype) for t in in_front]
        x = self.pos_dropout(jnp.concatenate([*in_front, x], axis=1), deterministic=not train)
        return self.pre_norm(x) if self.embed_norm else x

    def pool_tokens(
        self,
        x: Float[Array, "batch tokens width"],
        *,
        train: bool = False,
        attention_weights: bool = False,
        key_mask: Bool[Array, "batch patches"] | None = None,
        sizes: Float[Array, "batch tokens"] | None = None,
    ) -> Float[Array, "batch width"]:
        """One vector per image, by `pool`; prefix tokens take no part in "mean" and "map".

        key_mask: False for padding, which takes no part either. sizes: of tokens that were merged.
        """
        if self.pool == "cls":
            return x[:, 0]
        if self.pool == "none":
            return x
        if self.pool == "map":
            first = 0 if self.pool_prefix else self.prefix
            if key_mask is not None and self.pool_prefix:
                key_mask = self._with_prefix(key_mask)
            asked = {"attention_weights": attention_weights, "key_mask": key_mask}
            if sizes is not None and self.tome_proportional:
                asked["key_sizes"] = sizes[:, first:]
            return self.map_head(x[:, first:], train=train, **asked)
        sizes = sizes if sizes is None else sizes[:, self.prefix :]
        mean = mean_of_patches(x[:, self.prefix :], key_mask, sizes)
        return mean if self.pool == "mean" else jnp.concatenate([x[:, 0], mean], axis=-1)

    def position_table(
        self, grid: tuple[int, int] | None = None
    ) -> Float[Array, "1 rows width"] | None:
        """The vectors of all tokens that have one, learned or not; None where no token has.

        Rows of class and distillation token are in front, `num_prefix_positions` of them.

        Args:
            grid: `(height, width)` in patches; None: that of the built table.
        """
        grid = self.built_grid if grid is None else grid
        if not POSITION_KINDS[self.positions].vectors:
            return None
        in_front, kernel = self.num_prefix_positions, self.pos_resize
        if self.positions == "learned":
            return resize_positions(
                self.pos_embed, self.built_grid, grid, prefix=in_front, kernel=kernel
            )
        if self.positions in ("learned2d_sum", "learned2d_concat"):
            return self.pos_embed(grid)
        return fixed_table(
            self.positions,
            self.built_grid,
            grid,
            self.pos_channels,
            in_front=in_front,
            kernel=kernel,
        )

    def _block(self, number: int, **more: Any) -> Factory:
        """Return the factory of a block. more: fields of its layers, in place of those here."""
        fields = {
            "kind": self.attention_kind,
            "positions": self.attention_positions,
            "heads": of_block(self.heads, number),
            "mlp_width": self.hidden_width(number),
            "drop_path": self.drop_path_rates[number],
            "token_reduction": token_fields.block_reduction(self, number),
            **more,
        }
        block = remat_block(Block, self.remat, in_loop=self.scan_layers)
        return block_factory(self, self.attention_class, block=block, **fields)

    def _attention_pooling(self) -> nn.Module:
        heads = self.pool_heads or of_block(self.heads, -1)
        width = self.pool_mlp_width or self.hidden_width(-1)
        return factory(AttentionPooling, self, heads=heads, mlp_width=width)()

    def _with_prefix(self, key_mask: Bool[Array, "batch patches"]) -> Bool[Array, "batch tokens"]:
        """Return a mask of patches with one of all prefix tokens, which are never padding."""
        prefix = jnp.ones((key_mask.shape[0], self.prefix), bool)
        return jnp.concatenate([prefix, key_mask], axis=1)

    def _two_heads(self, tokens: Float[Array, "batch tokens width"]) -> DistilledLogits:
        both = DistilledLogits(*(tokens[:, i].astype(jnp.float32) for i in range(2)))
        if not self.num_classes:
            return both
        return DistilledLogits(self.head(both.head), self.head_dist(both.head_dist))

    def _make_patch_embed(self) -> nn.Module:
        """Module that turns images into a grid of tokens; subclasses override it."""
        return PatchEmbed(
            self.patch_channels,
            validation.pair(self.patch_size),
            self.patch_embed_method,
            self.patch_bias,
            self.init_scheme,
            self.dtype,
        )

    def _embed_patches(
        self, images: Float[Array, "batch height width channels"], *, train: bool
    ) -> Float[Array, "batch grid_height grid_width features"]:
        """Call `patch_embed`; subclasses pass `train` to stems that need it."""
        return self.patch_embed(images)
