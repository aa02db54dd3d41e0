"""Geometry of receptive fields: the layers between the image and each block of a network.

Every step maps a range of positions to the range that it sees of the map below it. The two sides
are separate, since windows, patches and images may be oblong. Layers that do not widen the range
(norms at a position, MLPs, 1 x 1 convolutions) are omitted, and of parallel branches the widest is
used.
"""

import math
from dataclasses import dataclass

from flax import linen as nn

from vit_jax.errors import UserError
from vit_jax.models import validation
from vit_jax.models.conv_stem.module import ConvStemViT
from vit_jax.models.convnext.module import ConvNeXt
from vit_jax.models.efficientnet.module import EfficientNet
from vit_jax.models.hybrid.module import HybridViT
from vit_jax.models.mixer.module import Mixer
from vit_jax.models.pvt.module import PVT
from vit_jax.models.resnet.module import ResNet
from vit_jax.models.swin.module import Swin
from vit_jax.models.vit.module import ViT

_FAR = 2**32  # more pixels than an image has


@dataclass(frozen=True)
class Convolution:
    """Convolution or pooling along one side of the image; `padding` is before the first."""

    kernel: int
    stride: int = 1
    padding: int = 0

    def seen(self, first: int, last: int) -> tuple[int, int]:
        """Return the range of the map below that the units from `first` to `last` see."""
        before = -self.padding
        return first * self.stride + before, last * self.stride + before + self.kernel - 1


@dataclass(frozen=True)
class WindowStep:
    """Window attention along one side of a map of `side` tokens."""

    side: int
    window: int
    shift: int = 0
    stride: int = 1

    def seen(self, first: int, last: int) -> tuple[int, int]:
        """Return the range of the map below that the units from `first` to `last` see."""
        # Index of the window; a unit beyond the map counts as its last.
        places = (min(max(place, 0), self.side - 1) for place in (first, last))
        begin, end = ((place - self.shift) // self.window for place in places)
        begin, end = begin * self.window + self.shift, (end + 1) * self.window + self.shift - 1
        return max(0, begin), min(self.side - 1, end)


@dataclass(frozen=True)
class Everything:
    """Global step: full attention, a norm over the map, or a mean; units see everything."""

    stride: int = 1

    def seen(self, first: int, last: int) -> tuple[int, int]:
        """Return the whole map."""
        return -_FAR, _FAR


Step = Convolution | WindowStep | Everything


def layer_steps(
    model: nn.Module, image_size: int | tuple[int, int] | None = None, axis: int = 0
) -> dict[str, list[Step]]:
    """Return the steps from the image to each block's output along one side, by block name.

    Args:
        image_size: `(height, width)` in pixels; None: the model's own.
        axis: 0 is the height, 1 the width.

    Raises:
        UserError: a model that is not part of this library.
    """
    size = validation.pair(model.image_size if image_size is None else image_size)
    for kind, make in _STEPS.items():
        if isinstance(model, kind):
            return make(model, size, axis)
    raise UserError(
        f"the receptive field of {type(model).__name__} is unknown; "
        "effective_receptive_fields() measures any model"
    )


def _resnet_steps(model: ResNet, size: tuple[int, int], axis: int) -> dict[str, list[Step]]:
    """Return the stem, and the 3 x 3 convolutions of blocks, which have the stride."""
    path = [Convolution(3, 1, 1)] if model.small_stem else [_centred(7, 2), _centred(3, 2)]
    steps = {}
    for stage, depth in enumerate(model.depths):
        for block in range(depth):
            path = [*path, _centred(3, 2 if stage and not block else 1)]
            if model.block == "basic":
                path.append(_centred(3))
            steps[f"stages_{stage}/blocks_{block}"] = path
    return steps


def _convnext_steps(model: ConvNeXt, size: tuple[int, int], axis: int) -> dict[str, list[Step]]:
    path, steps = [Convolution(model.patch_size, model.patch_size)], {}
    for stage, depth in enumerate(model.depths):
        if stage:
            path = [*path, Convolution(2, 2)]
        for block in range(depth):
            path = [*path, _centred(model.kernel_size)]
            steps[f"stages_{stage}/blocks_{block}"] = path
    return steps


def _swin_steps(model: Swin, size: tuple[int, int], axis: int) -> dict[str, list[Step]]:
    patch = validation.pair(model.patch_size)[axis]
    path, steps, stage = [Convolution(patch, patch)], {}, "stages_0"
    for name, windows in model.block_windows(size).items():
        if not name.startswith(f"{stage}/"):
            stage, path = name.split("/")[0], [*path, Convolution(2, 2)]
        step = WindowStep(windows.grid[axis], windows.window[axis], windows.shift[axis])
        steps[name] = path = [*path, step]
    return steps


def _vit_steps(model: ViT, size: tuple[int, int], axis: int) -> dict[str, list[Step]]:
    """Return steps by block; local attention widens in each, prefix tokens see all patches."""
    patch = validation.pair(model.patch_size)[axis]
    path, steps = [Convolution(patch, patch)], {}
    if isinstance(model, ConvStemViT):
        path = [_centred(model.stem_kernel, stride) for stride in model.strides]
    if isinstance(model, HybridViT):  # its GroupNorm takes statistics over the map
        path.append(Everything())
        for stage, units in enumerate(model.stem_units):
            names = (f"patch_embed/stages_{stage}/units_{unit}" for unit in range(units))
            stride = Convolution(1, 4 * 2**stage)
            steps.update({name: [stride, Everything()] for name in names})
    for block in range(model.depth):
        local = model.attention_type == "local" and not (model.prefix and block)
        path = [*path, _centred(model.local_window) if local else Everything()]
        steps[f"blocks_{block}"] = path
    return steps


def _global_steps(model: nn.Module, size: tuple[int, int], axis: int) -> dict[str, list[Step]]:
    """Return global steps for every block: attention, or squeeze and excitation."""
    if isinstance(model, Mixer):
        patch = validation.pair(model.patch_size)[axis]
        return {
            f"blocks_{n}": [Convolution(patch, patch), Everything()] for n in range(model.depth)
        }
    if isinstance(model, PVT):
        strides = model.patch_sizes
    else:
        strides = (model.stem_stride * model.strides[0], *model.strides[1:])
    return {
        f"stages_{stage}/blocks_{block}": [
            Convolution(1, math.prod(strides[: stage + 1])),
            Everything(),
        ]
        for stage, depth in enumerate(model.depths)
        for block in range(depth)
    }


_STEPS = {
    ResNet: _resnet_steps,
    ConvNeXt: _convnext_steps,
    Swin: _swin_steps,
    ViT: _vit_steps,
    Mixer: _global_steps,
    PVT: _global_steps,
    EfficientNet: _global_steps,
}


def _centred(kernel: int, stride: int = 1) -> Convolution:
    return Convolution(kernel, stride, kernel // 2)
