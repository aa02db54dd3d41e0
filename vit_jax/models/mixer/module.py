"""MLP-Mixer: blocks of two MLPs, one across patches and one across channels; no attention.

- The patches are the input features of the token MLP, so that the image size is part of the
  parameters: images of another size are an error, and `adapt` cannot change the size.
- All channels share one token MLP: it processes a batch of rows of patches, one per channel.
- Positions need no table, since the token MLP has a weight for each place.
"""

from typing import ClassVar

from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models import validation
from vit_jax.models.block import Remat, make_blocks, remat_block, run_blocks
from vit_jax.models.description.blocks import BlockInfo
from vit_jax.models.description.receptive import Everything, Steps, patches
from vit_jax.models.description.roles import Blocks, Role, Roles, kernel_and_bias
from vit_jax.models.features import Features, PooledClassifier
from vit_jax.models.fields import (
    Checked,
    Classes,
    Count,
    Depth,
    DtypeName,
    Hidden,
    Positive,
    Size,
    factory,
)
from vit_jax.models.initializers import INIT_SCHEMES, SchemeName
from vit_jax.models.layers.mlp import Activation, Mlp
from vit_jax.models.layers.norm import LayerNorm
from vit_jax.models.layers.patch_embed import PatchEmbed
from vit_jax.models.layers.residual import DropPath, drop_path_rates


class Mixer(PooledClassifier):
    """MLP-Mixer (Tolstikhin et al. 2021); the defaults are Mixer-B/16 with 1000 classes.

    `model.apply({"params": params}, images)` takes float32 images `(batch, height, width,
    channels)` of exactly `image_size`, already normalised, and gives float32 logits `(batch,
    classes)`; `method="features"` gives `Features`. Training needs `train=True` and, if a rate
    is not 0, the rng `"dropout"`.

    Parameters: `patch_embed`, `blocks_{i}/{norm1, token_mlp, norm2, channel_mlp}` with `fc1` and
    `fc2` in each MLP, `norm` and `head`.

    Raises:
        ValueError: at construction if fields do not fit each other, at the call if the images are
            not of the model's size, channels or type.
    """

    num_classes: Classes = 1000  # 0: no head, the pooled features come out
    image_size: Size = 224  # the only one that token MLPs take; (h, w) too
    patch_size: Size = 16
    in_channels: Count = 3
    width: Count = 768  # of a token: C in the paper
    depth: Depth = 12  # blocks
    token_mlp_width: Hidden = 384  # hidden width of the MLP across patches: D_S in the paper
    channel_mlp_width: Hidden = 3072  # of the MLP across channels: D_C
    mlp_dropout: float = 0.0  # in both MLPs, after the activation and after fc2
    drop_path: float = 0.0  # of the last block, from 0 linearly over depth (appendix A)
    activation: Activation = "gelu"  # exact, as timm; Google's own weights are of "gelu_tanh"
    norm_eps: Positive = 1e-6  # of every LayerNorm: flax's default, which timm has too
    init_scheme: SchemeName = "vit"  # as timm; the head begins at zero in Google's code too
    dtype: DtypeName = "float32"  # of the computation; parameters and logits are always float32
    remat: Remat = "none"  # the backward pass computes again "full" blocks, or all but "dots"
    scan_layers: bool = False  # one traced block that runs `depth` times; parameters are stacked

    def __post_init__(self):
        validation.check_types(self)
        name, size = type(self).__name__, validation.pair(self.image_size)
        validation.check_patches_fit(name, size, validation.pair(self.patch_size))
        validation.check_tokens(name, self.built_grid)
        super().__post_init__()

    def setup(self):
        self.patch_embed = PatchEmbed(
            self.width,
            validation.pair(self.patch_size),
            init_scheme=self.init_scheme,
            dtype=self.dtype,
        )
        block = remat_block(MixerBlock, self.remat, in_loop=self.scan_layers)
        blocks = [factory(block, self, drop_path=rate) for rate in self.drop_path_rates]
        self.blocks = make_blocks(blocks, scan=self.scan_layers)
        self.norm = LayerNorm(epsilon=self.norm_eps, dtype=self.dtype)
        # The head computes in float32 whatever the blocks use, because losses need exact logits.
        if self.num_classes:
            kernel_init = INIT_SCHEMES[self.init_scheme].head
            self.head = nn.Dense(self.num_classes, kernel_init=kernel_init)

    def features(
        self, images: Float[Array, "batch height width channels"], *, train: bool = False
    ) -> Features:
        """Return all tokens after the norm, and their mean, in the compute type."""
        x, grid = self.embed(images)
        x = run_blocks(self.blocks, x, self.drop_path_rates, train=train, grid=grid)
        x = self.norm(x)
        pooled = x.mean(axis=1)  # sums in float32, also for bfloat16
        return Features(tokens=x, pooled=pooled, grid=grid)

    def embed(
        self, images: Float[Array, "batch height width channels"]
    ) -> tuple[Float[Array, "batch tokens width"], tuple[int, int]]:
        """Return the tokens that enter the first block, and the grid of their patches."""
        validation.check_images(self, images)
        height, width = validation.pair(self.image_size)
        if tuple(images.shape[1:3]) != (height, width):
            raise ValueError(
                f"{type(self).__name__}: the token MLPs need images of {height} x "
                f"{width} pixels (height x width), got {images.shape[1]} x "
                f"{images.shape[2]}; resize the images to {height} x {width}, or train a model "
                "with another image_size."
            )
        x = self.patch_embed(images)
        batch, *grid, channels = x.shape
        return x.reshape(batch, -1, channels), tuple(grid)

    def roles(self) -> Roles:
        """Return the roles of the parameters, in the order of the forward pass."""
        return {
            "patch_embed": PatchEmbed.ROLES,
            "blocks_*": Blocks(MixerBlock.ROLES),
            "norm": LayerNorm.ROLES,
            "head": kernel_and_bias(Role.HEAD),
        }

    def block_infos(self, image_size: int | tuple[int, int] | None = None) -> tuple[BlockInfo, ...]:
        """Return the blocks, for images of a size in pixels; None: the model's own."""
        height, width = validation.pair(image_size or self.image_size)
        patch = validation.pair(self.patch_size)
        grid = (height // patch[0], width // patch[1])
        return tuple(BlockInfo(f"blocks_{i}", "mlp", grid, patch) for i in range(self.depth))

    def receptive_steps(
        self, image_size: int | tuple[int, int] | None = None, axis: int = 0
    ) -> Steps:
        """Return the steps to every block's output: a token MLP sees all patches."""
        path = [patches(validation.pair(self.patch_size)[axis]), Everything()]
        return {block.path: path for block in self.block_infos(image_size)}

    @property
    def drop_path_rates(self) -> list[float]:
        """Rate of every block."""
        return drop_path_rates(self.drop_path, self.depth)

    @property
    def built_grid(self) -> tuple[int, int]:
        """Height and width, in patches, of the images that the model takes."""
        (height, width), (rows, columns) = map(validation.pair, (self.image_size, self.patch_size))
        return height // rows, width // columns


class MixerBlock(Checked):
    """Two residual branches: an MLP across tokens, then one across channels (paper, eq. 1).

    The output is sown as `intermediates/.../out`.
    """

    ROLES: ClassVar[Roles] = {
        "norm1": LayerNorm.ROLES,
        "token_mlp": Mlp.ROLES,
        "norm2": LayerNorm.ROLES,
        "channel_mlp": Mlp.ROLES,
    }

    token_mlp_width: Hidden
    channel_mlp_width: Hidden
    mlp_dropout: float = 0.0
    drop_path: float = 0.0
    activation: Activation = "gelu"
    norm_eps: Positive = 1e-6
    init_scheme: SchemeName = "vit"
    dtype: str = "float32"

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch tokens width"],
        *,
        train: bool = False,
        drop_path: Float[Array, ""] | None = None,  # in place of the field's, where it is traced
    ) -> Float[Array, "batch tokens width"]:
        def mlp(width: int, name: str) -> Mlp:
            return factory(Mlp, self, mlp_width=width)(name=name)

        norm1 = LayerNorm(epsilon=self.norm_eps, dtype=self.dtype, name="norm1")
        norm2 = LayerNorm(epsilon=self.norm_eps, dtype=self.dtype, name="norm2")

        rows = norm1(x).swapaxes(1, 2)  # (batch, width, tokens): a row of patches per channel
        mixed = mlp(self.token_mlp_width, "token_mlp")(rows, train=train).swapaxes(1, 2)
        x = x + DropPath(self.drop_path)(mixed, train=train, rate=drop_path)
        mixed = mlp(self.channel_mlp_width, "channel_mlp")(norm2(x), train=train)
        x = x + DropPath(self.drop_path)(mixed, train=train, rate=drop_path)
        self.sow("intermediates", "out", x)
        return x

    def step(
        self,
        x: Float[Array, "batch tokens width"],
        drop_path: Float[Array, ""] | None,
        train: bool,
        attention_weights: bool,  # unused
        grid: tuple[int, int],  # unused
        key_mask: None,  # unused
    ) -> tuple[Float[Array, "batch tokens width"], None]:
        """Call the block in the common form for `nn.scan` and `nn.remat`."""
        return self(x, train=train, drop_path=drop_path), None
