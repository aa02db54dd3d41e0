"""Description of a ViT: roles of its parameters, its blocks, and what they see."""

from typing import ClassVar

from vit_jax.models.block import Block
from vit_jax.models.description.blocks import BlockInfo, Stem
from vit_jax.models.description.receptive import Everything, Steps, centred, patches
from vit_jax.models.description.roles import Blocks, Role, Roles, kernel_and_bias
from vit_jax.models.layers.norm import LayerNorm
from vit_jax.models.layers.patch_embed import PatchEmbed
from vit_jax.models.layers.pooling import AttentionPooling
from vit_jax.models.positions.types import AxisTables
from vit_jax.models.validation import pair


class DescribedViT:
    """Base of `ViT` with the methods that describe it; `patch_roles` are those of `patch_embed`."""

    patch_roles: ClassVar[Roles] = PatchEmbed.ROLES

    def roles(self) -> Roles:
        """Return the roles of the parameters, in the order of the forward pass."""
        tables = self.positions in ("learned2d_sum", "learned2d_concat")
        return {
            "patch_embed": self.patch_roles,
            "pos_embed": AxisTables.ROLES if tables else Role.POSITION_TABLE,
            **dict.fromkeys(("cls_token", "dist_token", "reg_tokens"), Role.TOKEN),
            "pre_norm": LayerNorm.ROLES,
            "blocks_*": Blocks(Block.ROLES),
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
