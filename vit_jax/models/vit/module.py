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

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models import validation
from vit_jax.models.attention.types import AttentionType
from vit_jax.models.block import Block, remat_block, scan_blocks
from vit_jax.models.features import DistilledLogits, Features
from vit_jax.models.initializers import INIT_SCHEMES
from vit_jax.models.layers.norm import LayerNorm
from vit_jax.models.layers.patch_embed import PatchEmbed
from vit_jax.models.layers.pooling import AttentionPooling
from vit_jax.models.layers.residual import drop_path_rates
from vit_jax.models.positions.tables import PositionTable, resize_positions
from vit_jax.models.positions.types import (
    POSITION_KINDS,
    AttentionPositions,
    AxisTables,
    combine,
    fixed_table,
)
from vit_jax.models.vit.description import DescribedViT


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

    num_classes: int = 1000  # 0: no head, the pooled features come out
    image_size: int | tuple[int, int] = 224  # the size the position table is built for; (h, w) too
    patch_size: int | tuple[int, int] = 16  # (h, w) for spectrograms and other oblong things
    in_channels: int = 3  # 1 for grey images, more for satellites
    width: int = 768  # of a token, all through the network
    depth: int = 12  # blocks
    heads: int = 12  # head_dim is 64 in nearly all published sizes
    head_dim: int | None = None  # None: width / heads
    mlp_ratio: float = 4.0  # hidden width of the MLP, as a multiple of width
    mlp_width: int | None = None  # the same as a number, where it is no round multiple; goes first
    pool: str = "cls"  # "mean" of patches, "map" attention pooling, "none" logits for every token
    class_token: bool | None = None  # None: there is one exactly if the pool is "cls"
    pool_norm: str = "before"  # "after": pool first, then norm, timm's fc_norm
    distilled: bool = False  # DeiT's second token and second head, which learn from a teacher
    registers: int = 0  # spare tokens for global notes (Darcet et al. 2024); 4 in DINOv2-reg
    positions: str = "learned"  # or fixed, "relative", "rotary", "none"; see `position_kinds`
    pos_on_cls: bool = True  # False: positions are for patches only (big_vision, DeiT III)
    pos_combine: str = "add"  # "concat": they take the last channels and the patches the others
    pos_width: int | None = None  # channels that "concat" gives to positions; None: width / 4
    rotary_base: float = 100.0  # the slowest turn is about 1 / base radian for each patch
    norm_order: str = "pre"  # "post" is torch's TransformerEncoderLayer(norm_first=False)
    embed_norm: bool = False  # a norm between embedding and blocks: CLIP's ln_pre
    patch_bias: bool = True  # CLIP's patch convolution has none
    representation_size: int | None = None  # dense + tanh before the head, as in 2020 pre-training
    attention_dropout: float = 0.0  # on attention weights
    projection_dropout: float = 0.0  # after the attention's output projection
    mlp_dropout: float = 0.0  # in the MLP, after the activation and after fc2
    position_dropout: float = 0.0  # on tokens once positions are added
    drop_path: float = 0.0  # stochastic depth: rate of the last block, from 0 linearly over depth
    layer_scale: float | None = None  # initial value; deep DeiT III and DINOv2 use 1e-4 to 1e-5
    qkv_bias: bool = True  # some later models leave it out
    qk_norm: bool = False  # keeps attention logits bounded in very large models (ViT-22B)
    mlp: str = "plain"  # "swiglu": the hidden layer has a gate (DINOv2's giant)
    lora_rank: int = 0  # of low-rank additions to qkv and the MLP, for fine-tuning; 4 to 16 do
    activation: str = "gelu"  # exact; "gelu_tanh" Google's weights, "quick_gelu" CLIP, "relu"
    norm_eps: float = 1e-6  # of every LayerNorm; torch's default would be 1e-5
    init_scheme: str = "vit"  # "trunc02" DeiT, "normal02" small CIFAR models
    patch_embed_method: str = "conv"  # or "dense": the same numbers by cutting and a matmul
    pos_resize: str = "cubic"  # how the learned table is resized: as where the weights are from
    dtype: str = "float32"  # of the computation; parameters and logits are always float32
    attention_type: str = "softmax"  # what blocks do with q, k and v; see `attention_kinds`
    performer_features: int = 256  # random features of "performer"; the error falls as they rise
    performer_seed: int = 0  # what they are made from, the same at every call
    linformer_rank: int = 64  # mixtures that stand for all keys and values in "linformer"
    local_window: int = 7  # odd; patches along each side of what a patch sees in "local"
    attention_impl: str = (
        "auto"  # or "xla", "chunked" (little memory), "cudnn", "pallas"; of the blocks
    )
    remat: str = "none"  # the backward pass computes again "full" blocks, or all but "dots"
    scan_layers: bool = False  # one traced block that runs `depth` times; parameters are stacked

    def __post_init__(self):
        validation.check_fields(self)
        super().__post_init__()

    def setup(self):
        scheme, width = INIT_SCHEMES[self.init_scheme], self.width
        self.patch_embed = self._make_patch_embed()
        if self.has_class_token:
            shape = (1, 1, self._front_width)
            self.cls_token = self.param("cls_token", scheme.class_token, shape)
        if self.distilled:  # drawn like registers, apart from a class token that may begin at zero
            shape = (1, 1, self._front_width)
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
        if self.embed_norm:
            self.pre_norm = self._layer_norm()

        shared = {
            "heads": self.heads,
            "mlp_width": self.mlp_width or int(width * self.mlp_ratio),
            "activation": self.activation,
            "norm_eps": self.norm_eps,
            "init_scheme": self.init_scheme,
            "dtype": self.dtype,
        }
        of_blocks = {
            "head_dim": self.head_dim,
            "qkv_bias": self.qkv_bias,
            "qk_norm": self.qk_norm,
            "norm_order": self.norm_order,
            "layer_scale": self.layer_scale,
            "attention_dropout": self.attention_dropout,
            "projection_dropout": self.projection_dropout,
            "mlp_dropout": self.mlp_dropout,
            "attention_impl": self.attention_impl,
            "mlp_kind": self.mlp,
            "lora_rank": self.lora_rank,
            "attention_type": AttentionType(
                self.attention_type,
                self.performer_features,
                self.performer_seed,
                self.linformer_rank,
                self.local_window,
            ),
            "positions": self.attention_positions,
            **shared,
        }
        block = remat_block(Block, self.remat, in_loop=self.scan_layers)
        if self.scan_layers:
            self.blocks = scan_blocks(block, self.depth)(drop_path=self.drop_path, **of_blocks)
        else:
            rates = drop_path_rates(self.drop_path, self.depth)
            self.blocks = [block(drop_path=rate, **of_blocks) for rate in rates]
        self.norm = self._layer_norm()
        if self.pool == "map":
            self.map_head = AttentionPooling(**shared)
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
    ) -> Features:
        """Return all tokens after the last block, and the pooled vector, in the compute type."""

        x, grid = self.embed(images, train=train)
        if self.scan_layers:
            rates = jnp.array(drop_path_rates(self.drop_path, self.depth))
            x, _ = self.blocks.step(x, rates, train, attention_weights, grid)
        else:
            for block in self.blocks:
                x, _ = block.step(x, None, train, attention_weights, grid)
        if self.pool_norm == "before":
            x = self.norm(x)
        pooled = self.pool_tokens(x, train=train, attention_weights=attention_weights)
        if self.pool_norm == "after":
            pooled = self.norm(pooled)
        return Features(tokens=x, pooled=pooled, grid=grid, prefix=self.prefix)

    def embed(
        self, images: Float[Array, "batch height width channels"], *, train: bool = False
    ) -> tuple[Float[Array, "batch tokens width"], tuple[int, int]]:
        """Images to the tokens that enter the first block, and the grid of their patches."""
        validation.check_images(self, images)
        validation.check_image_size(self, tuple(images.shape[1:3]))
        x = self._embed_patches(images, train=train)
        batch, *grid, channels = x.shape
        x = x.reshape(batch, -1, channels)

        positions = self.position_table(tuple(grid))
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
        return self.pre_norm(x) if self.embed_norm else x, tuple(grid)

    def pool_tokens(
        self,
        x: Float[Array, "batch tokens width"],
        *,
        train: bool = False,
        attention_weights: bool = False,
    ) -> Float[Array, "batch width"]:
        """One vector per image, by `pool`; prefix tokens take no part in "mean" and "map"."""
        if self.pool == "cls":
            return x[:, 0]
        if self.pool == "mean":
            return x[:, self.prefix :].mean(axis=1)  # sums in float32, also for bfloat16
        if self.pool == "map":
            patches = x[:, self.prefix :]
            return self.map_head(patches, train=train, attention_weights=attention_weights)
        return x

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

    @property
    def has_class_token(self) -> bool:
        return self.pool == "cls" if self.class_token is None else self.class_token

    @property
    def prefix(self) -> int:
        """Number of tokens before the patches."""
        return int(self.has_class_token) + int(self.distilled) + self.registers

    @property
    def built_grid(self) -> tuple[int, int]:
        """`(height, width)` in patches of the image size the position table is made for."""
        (height, width), (rows, columns) = map(validation.pair, (self.image_size, self.patch_size))
        return height // rows, width // columns

    @property
    def num_prefix_positions(self) -> int:
        """Rows of the table of positions that are for the class and the distillation token."""
        if not POSITION_KINDS[self.positions].in_front or not self.pos_on_cls:
            return 0
        return int(self.has_class_token) + int(self.distilled)

    @property
    def position_tables(self) -> dict[str, PositionTable]:
        """The tables that can be resized to another grid, by their paths."""
        (height, width), kernel = self.built_grid, self.pos_resize
        if self.positions == "learned":
            return {"pos_embed": PositionTable((height, width), self.num_prefix_positions, kernel)}
        if self.positions in ("learned2d_sum", "learned2d_concat"):
            sides = {"rows": height, "columns": width}
            return {
                f"pos_embed/{name}": PositionTable((side, 1), 0, kernel)
                for name, side in sides.items()
            }
        if self.positions == "relative":
            table = self.attention_positions.table
            return {f"blocks_{i}/attn/relative_bias": table for i in range(self.depth)}
        return {}

    @property
    def attention_positions(self) -> AttentionPositions:
        """Position settings of the attention layers."""
        return AttentionPositions(
            self.positions,
            self.built_grid,
            self.prefix,
            self.pos_on_cls,
            self.pos_resize,
            self.rotary_base,
        )

    @property
    def pos_channels(self) -> int:
        """Channels of a position vector."""
        if self.pos_combine == "add":
            return self.width
        return self.width // 4 if self.pos_width is None else self.pos_width

    @property
    def patch_channels(self) -> int:
        """Channels that the patch embedding makes."""
        return self.width - (self.pos_channels if self.pos_combine == "concat" else 0)

    @property
    def _front_width(self) -> int:
        """Channels of the parameters of tokens that have positions."""
        return self.patch_channels if self.num_prefix_positions else self.width

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

    def _layer_norm(self) -> LayerNorm:
        return LayerNorm(epsilon=self.norm_eps, dtype=self.dtype)
