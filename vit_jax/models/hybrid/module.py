"""Hybrids of ResNet and ViT, the "R+ViT" of Dosovitskiy et al. 2021 and Steiner et al. 2022.

- Only the patch embedding differs: it sees the feature map of a ResNet (`bit_resnet`), in most
  sizes one place of it for each token.
- `patch_size` is in pixels of the image, as in every ViT, so it is the stride of ResNet and patches
  together: 4 for the root, 2 for each stage after the first, times the patch. So position tables,
  valid image sizes and grids are those of `ViT`.
- The published names have the stride of the ResNet, or follow Google's code: "R+ViT-Ti/16" has a
  ResNet without units, of stride 4, and patches of 8 x 8 places: 32 pixels.
"""

import dataclasses
from typing import Any, ClassVar

from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.errors import shown
from vit_jax.models import validation
from vit_jax.models.description.blocks import BlockInfo, pyramid_blocks
from vit_jax.models.description.receptive import Everything, Step, Steps, global_steps
from vit_jax.models.description.roles import Roles
from vit_jax.models.features import Features
from vit_jax.models.fields import Count, Positive, check_blocks
from vit_jax.models.hybrid.bit_resnet import ResNetPatchEmbed, Stage, stride_of
from vit_jax.models.vit.module import ViT


class HybridViT(ViT):
    """ViT on the feature map of a ResNet; the defaults are R50+ViT-B/16.

    The ResNet has no running statistics and no dropout; `drop_path`, `remat` and `scan_layers` are
    for the blocks of the ViT. `stem_std_eps` and `stem_var_eps` are Google's; timm's files need
    1e-5, 0 and 1e-8 for the three epsilons of the stem.

    Raises:
        ValueError: at construction or at the call, as `ViT`; also if the patch size is no multiple
            of the ResNet's stride, or groups do not divide its width.

    Source: Dosovitskiy et al. 2021, section 3.1 ("Hybrid Architecture") and table 6; Steiner et al.
    2022, "How to train your ViT?", table 2.
    """

    patch_roles: ClassVar[Roles] = ResNetPatchEmbed.ROLES

    stem_units: tuple[int, ...] = (3, 4, 9)  # of each stage; () is the root alone
    stem_width: Count = 64  # channels of the root; the first stage has four times as many
    stem_groups: Count = 32  # of GroupNorm
    stem_norm_eps: Positive = 1e-6  # of GroupNorm
    stem_std_eps: float = 1e-5  # added to the deviation of a kernel
    stem_var_eps: float = 0.0  # added to its variance

    def __post_init__(self):
        name = type(self).__name__
        validation.check_types(self)
        if any(number < 1 for number in self.stem_units):
            raise ValueError(
                f"{name}: stem_units={shown(self.stem_units)} must be numbers of units, one of at "
                "least 1 for each stage; () for a root without any."
            )
        if self.stem_units:
            check_blocks(name, "stem_units", self.stem_units)
        width = self.stem_width
        validation.check_multiple(name, "stem_width", width, "stem_groups", self.stem_groups)
        for field in ("stem_std_eps", "stem_var_eps"):
            if getattr(self, field) != 0:
                validation.check_positive(name, field, getattr(self, field))
        stride = stride_of(self.stem_units)
        for side in validation.pair(self.patch_size):
            validation.check_multiple(name, "patch_size", side, "the stride of the ResNet", stride)
        super().__post_init__()

    def _make_patch_embed(self) -> nn.Module:
        stride = stride_of(self.stem_units)
        height, width = validation.pair(self.patch_size)
        return ResNetPatchEmbed(
            self.patch_channels,
            (height // stride, width // stride),
            self.patch_embed_method,
            self.patch_bias,
            self.init_scheme,
            self.dtype,
            stem_units=self.stem_units,
            stem_width=self.stem_width,
            groups=self.stem_groups,
            norm_eps=self.stem_norm_eps,
            std_eps=self.stem_std_eps,
            var_eps=self.stem_var_eps,
        )

    def features(
        self,
        images: Float[Array, "batch height width channels"],
        *,
        stages: tuple[int, ...] = (),
        **asked: Any,
    ) -> Features:
        """Return the features of a ViT.

        stages: numbers of stages of the ResNet, from 0, whose maps are given too.
        """
        for number in stages:
            if not 0 <= number < len(self.stem_units):
                raise ValueError(
                    f"{type(self).__name__}: there is no stage {number} of the ResNet, which has "
                    f"{len(self.stem_units)} of them."
                )
        maps: dict[str, Array] = {}

        def keep(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
            output = call(*args, **kwargs)
            if isinstance(context.module, Stage) and context.method_name == "__call__":
                maps[context.module.name] = output
            return output

        with nn.intercept_methods(keep):
            found = super().features(images, **asked)
        own = tuple(maps[f"stages_{number}"] for number in stages)
        return found.replace(stages=own or None)

    def stage_channels(self, number: int) -> int:
        """Return the channels of the map of a stage of the ResNet."""
        return 4 * self.stem_width * 2**number

    def block_infos(self, image_size: int | tuple[int, int] | None = None) -> tuple[BlockInfo, ...]:
        """Return the units of the ResNet, which are no layers, and the blocks."""
        size = validation.pair(image_size or self.image_size)
        units = pyramid_blocks(size, self.stem_units, self._stage_strides, "convolution")
        units = tuple(
            dataclasses.replace(unit, path=_unit_path(unit.path), stage=0, is_layer=False)
            for unit in units
        )
        return units + super().block_infos(image_size)

    def receptive_steps(
        self, image_size: int | tuple[int, int] | None = None, axis: int = 0
    ) -> Steps:
        """Return the steps to the output of every unit and block: all see the whole image."""
        units = [info for info in self.block_infos(image_size) if not info.is_layer]
        of_units = global_steps((info.path, info.patch_size[axis]) for info in units)
        return {**of_units, **super().receptive_steps(image_size, axis)}

    def stem_steps(self, axis: int) -> list[Step]:
        """Return the steps from the image to the tokens; GroupNorm sees the whole map."""
        return [*super().stem_steps(axis), Everything()]

    @property
    def _stage_strides(self) -> tuple[int, ...]:
        return (4, *[2] * (len(self.stem_units) - 1))[: len(self.stem_units)]


def _unit_path(path: str) -> str:
    """Return the path of a unit from that of a block of a pyramid."""
    return f"patch_embed/{path.replace('blocks_', 'units_')}"
