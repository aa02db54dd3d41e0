"""Description of a ViT: roles of its parameters, its blocks, what they see, and their sizes."""

from typing import ClassVar

from vit_jax.models.attention.multi_head import Attention
from vit_jax.models.attention.types import AttentionType
from vit_jax.models.block import Block
from vit_jax.models.description.blocks import BlockInfo, Stem
from vit_jax.models.description.receptive import Everything, Steps, centred, patches
from vit_jax.models.description.roles import Blocks, Role, Roles, kernel_and_bias
from vit_jax.models.fields import fields_of, of_block, pair
from vit_jax.models.layers.norm import LayerNorm
from vit_jax.models.layers.patch_embed import PatchEmbed
from vit_jax.models.layers.pooling import AttentionPooling
from vit_jax.models.layers.residual import drop_path_rates
from vit_jax.models.positions.tables import PositionTable
from vit_jax.models.positions.types import POSITION_KINDS, AttentionPositions, AxisTables


class DescribedViT:
    """Base of `ViT` with the methods that describe it.

    patch_roles: those of `patch_embed`. attention_class: of the blocks.
    """

    patch_roles: ClassVar[Roles] = PatchEmbed.ROLES
    attention_class: ClassVar[type[Attention]] = Attention

    def roles(self) -> Roles:
        """Return the roles of the parameters, in the order of the forward pass."""
        tables = self.positions in ("learned2d_sum", "learned2d_concat")
        return {
            "patch_embed": self.patch_roles,
            "pos_embed": AxisTables.ROLES if tables else Role.POSITION_TABLE,
            **dict.fromkeys(("cls_token", "dist_token", "reg_tokens"), Role.TOKEN),
            **dict.fromkeys(("stem_norm", "pre_norm"), LayerNorm.ROLES),
            "blocks_*": Blocks({**Block.ROLES, "attn": self.attention_class.ROLES}),
            "norm": LayerNorm.ROLES,
            "map_head": AttentionPooling.ROLES,
            "pre_logits": kernel_and_bias(Role.LINEAR),
            "head": kernel_and_bias(Role.HEAD),
            "head_dist": kernel_and_bias(Role.HEAD),
        }

    def block_infos(self, image_size: int | tuple[int, int] | None = None) -> tuple[BlockInfo, ...]:
        """Return the blocks, for images of a size in pixels; None: the model's own."""
        (height, width), patch = pair(image_size or self.image_size), pair(self.patch_size)
        grid = (height // patch[0], width // patch[1])
        local = self.local_window if self.attention_type == "local" else None
        return tuple(
            BlockInfo(f"blocks_{i}", "attention", grid, patch, self.prefix, local_window=local)
            for i in range(self.depth)
        )

    def receptive_steps(
        self, image_size: int | tuple[int, int] | None = None, axis: int = 0
    ) -> Steps:
        """Return the steps to every block's output; prefix tokens see all patches."""
        path, steps = self.stem_steps(axis), {}
        for i, block in enumerate(DescribedViT.block_infos(self, image_size)):
            is_local = block.local_window and not (self.prefix and i)
            path = [*path, centred(block.local_window) if is_local else Everything()]
            steps[block.path] = path
        return steps

    def stem_steps(self, axis: int) -> list:
        """Return the steps from the image to the tokens."""
        return [patches(pair(self.patch_size)[axis])]

    @property
    def patch_stem(self) -> Stem | None:
        """The patch embedding; None for a subclass with another stem, whose patches overlap."""
        if self.patch_roles is not PatchEmbed.ROLES:
            return None
        return Stem(("patch_embed",), self.patch_channels, pair(self.patch_size))

    @property
    def has_class_token(self) -> bool:
        """True for a model with a class token, also one that only its pool asks for."""
        return self.pool.startswith("cls") if self.class_token is None else self.class_token

    @property
    def prefix(self) -> int:
        """Number of tokens before the patches."""
        return int(self.has_class_token) + int(self.distilled) + self.registers

    @property
    def built_grid(self) -> tuple[int, int]:
        """`(height, width)` in patches of the image size the position table is made for."""
        (height, width), (rows, columns) = map(pair, (self.image_size, self.patch_size))
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
            self.rotary,
            self.rotary_base,
            self.registers,
            self.rotary_grid,
        )

    @property
    def attention_kind(self) -> AttentionType:
        """Attention type of the blocks with its settings."""
        return AttentionType(self.attention_type, **fields_of(AttentionType, self))

    @property
    def drop_path_rates(self) -> list[float]:
        """Rate of every block."""
        return drop_path_rates(self.drop_path, self.depth)

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
    def front_width(self) -> int:
        """Channels of the parameters of tokens that have positions."""
        return self.patch_channels if self.num_prefix_positions else self.width

    def hidden_width(self, number: int) -> int:
        """Return the width of the hidden layer of the MLP of a block."""
        if self.mlp_width is None:
            return int(self.width * self.mlp_ratio)
        return of_block(self.mlp_width, number)
