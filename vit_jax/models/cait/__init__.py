"""CaiT: a deep ViT whose class token comes late (Touvron et al. 2021, "Going deeper with Image
Transformers").

- The blocks see patches alone, with talking heads and a layer scale that begins near zero. Then a
  class token reads the patches in two blocks of class attention, which change nothing else.
- The fields are those of `ViT`. Class attention has the place of its attention pooling, `map_head`.
- The mixtures of heads are linear layers with biases. The bias before the softmax moves all logits
  of a head alike: it changes nothing, and is in the files.
- As in the authors' code the rate of `drop_path` is the same in all blocks of patches, and blocks
  of class attention drop nothing.
"""

from typing import Annotated, ClassVar

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.attention.types import AttentionKind
from vit_jax.models.block import Block, block_factory
from vit_jax.models.description.blocks import BlockInfo
from vit_jax.models.description.receptive import Everything, Steps
from vit_jax.models.description.roles import Blocks, Role, Roles
from vit_jax.models.fields import Checked, Choice, Count, Factory, Positive, of_block, pair
from vit_jax.models.foreign_names import add_names
from vit_jax.models.initializers import INIT_SCHEMES, SchemeName
from vit_jax.models.layers.norm import make_norm
from vit_jax.models.layers.residual import LayerScale
from vit_jax.models.positions.tables import ResizeMethod
from vit_jax.models.positions.types import AttentionPositions
from vit_jax.models.registry import register
from vit_jax.models.vit.module import ViT


class CaiT(ViT):
    """CaiT; the defaults are CaiT-XXS/24 at 224 pixels with 1000 classes.

    Parameters besides those of the ViT's blocks: `map_head/cls_token (1, 1, width)` and
    `map_head/class_blocks_{i}/{norm1, attn, ls1, norm2, mlp, ls2}`.

    Raises:
        ValueError: at construction or at the call, as `ViT`; also for a field that would make it
            another architecture.
    """

    width: Count = 192
    depth: Count = 24  # blocks of patches
    class_depth: Count = 2  # blocks of class attention
    heads: Count = 4
    layer_scale: Positive = 1e-5  # initial value; 1e-6 in the deepest
    attention_type: Annotated[AttentionKind, Choice("talking_heads")] = "talking_heads"
    talking_layers: ClassVar[bool] = True  # the mixtures of heads are layers, with biases
    norm_order: Annotated[str, Choice("pre")] = "pre"
    parallel: Annotated[bool, Choice(False)] = False
    pool: Annotated[str, Choice("map")] = "map"
    pool_norm: Annotated[str, Choice("after")] = "after"
    init_scheme: SchemeName = "trunc02"
    pos_resize: ResizeMethod = "torch-bicubic"

    @property
    def drop_path_rates(self) -> list[float]:
        """Rate of every block."""
        return [self.drop_path] * self.depth

    def _attention_pooling(self) -> nn.Module:
        no_drops = ("attention_dropout", "projection_dropout", "mlp_dropout", "drop_path")
        block = block_factory(
            self,
            block=ClassBlock,
            heads=of_block(self.heads, -1),
            mlp_width=self.hidden_width(-1),
            positions=AttentionPositions(),
            **dict.fromkeys(no_drops, 0.0),
        )
        return ClassAttention((block,) * self.class_depth, self.init_scheme)

    def roles(self) -> Roles:
        """Return the roles of the parameters, in the order of the forward pass."""
        pooling = {"cls_token": Role.TOKEN, "class_blocks_*": Blocks(Block.ROLES)}
        roles = {**super().roles(), "map_head": pooling}
        last = {name: roles.pop(name) for name in ("norm", "pre_logits", "head", "head_dist")}
        return roles | last

    def block_infos(self, image_size: int | tuple[int, int] | None = None) -> tuple[BlockInfo, ...]:
        """Return the blocks; the one query of class attention stands for the whole image."""
        patches = super().block_infos(image_size)
        grid, whole = patches[0].grid, pair(image_size or self.image_size)
        keys = {"keys_grid": grid, "keys_prefix": 1 + self.prefix}
        return patches + tuple(
            BlockInfo(path, "attention", (1, 1), whole, stage=1, **keys)
            for path in self._class_paths
        )

    def receptive_steps(
        self, image_size: int | tuple[int, int] | None = None, axis: int = 0
    ) -> Steps:
        """Return the steps to every block's output: attention sees the whole image."""
        steps = super().receptive_steps(image_size, axis)
        whole = [*list(steps.values())[-1], Everything()]
        return {**steps, **{path: whole for path in self._class_paths}}

    @property
    def _class_paths(self) -> list[str]:
        return [f"map_head/class_blocks_{i}" for i in range(self.class_depth)]


class ClassAttention(Checked):
    """Class token that reads all other tokens in blocks of its own; gives `(batch, width)`."""

    blocks: tuple[Factory, ...]
    init_scheme: SchemeName

    @nn.compact
    def __call__(
        self,
        tokens: Float[Array, "batch tokens width"],
        *,
        train: bool = False,
        attention_weights: bool = False,
        key_mask: None = None,  # unused: talking heads have none
    ) -> Float[Array, "batch width"]:
        shape = (1, 1, tokens.shape[-1])
        token = self.param("cls_token", INIT_SCHEMES[self.init_scheme].class_token, shape)
        x = jnp.broadcast_to(token, (tokens.shape[0], *shape[1:])).astype(tokens.dtype)
        for i, block in enumerate(self.blocks):
            block = block(name=f"class_blocks_{i}")
            x = block(x, tokens, train=train, attention_weights=attention_weights)
        return x[:, 0]


class ClassBlock(Block):
    """Block of a class token, which attends to itself and the other tokens (paper, section 3)."""

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch 1 width"],
        context: Float[Array, "batch tokens width"],
        **asked: bool,  # train, attention_weights
    ) -> Float[Array, "batch 1 width"]:
        scales = [LayerScale(self.layer_scale, self.dtype, name=name) for name in ("ls1", "ls2")]
        joined = make_norm(self, "norm1")(jnp.concatenate([x, context], axis=1))
        x = x + scales[0](self.attn(name="attn")(joined[:, :1], joined, **asked))
        hidden = make_norm(self, "norm2")(x)
        x = x + scales[1](self.mlp(name="mlp")(hidden, train=asked["train"]))
        self.sow("intermediates", "out", x)
        return x


_FIELDS = ("width", "heads", "depth", "image_size", "layer_scale")
_SIZES = {  # as in the authors' code and files
    "CaiT-XXS/24": (192, 4, 24, 224, 1e-5),
    "CaiT-XXS/36": (192, 4, 36, 224, 1e-5),
    "CaiT-XS/24": (288, 6, 24, 384, 1e-5),
    "CaiT-S/24": (384, 8, 24, 224, 1e-5),
    "CaiT-S/36": (384, 8, 36, 384, 1e-6),
    "CaiT-M/36": (768, 16, 36, 384, 1e-6),
    "CaiT-M/48": (768, 16, 48, 448, 1e-6),
}
_SOURCE = "Going deeper with Image Transformers (Touvron et al. 2021)"
for _name, _row in _SIZES.items():
    _fields = dict(zip(_FIELDS, _row, strict=True))
    register(_name, CaiT, _SOURCE, **_fields, mlp_width=4 * _row[0])
register("CaiT", CaiT, "the class itself, with the sizes of CaiT-XXS/24: for other sizes")
add_names(r"cait_?(xxs|xs|s|m)_?(24|36|48)(?:_.*)?", "CaiT-{1}/{2}")
