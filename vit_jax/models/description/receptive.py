"""Steps of a receptive field: what a unit of one layer sees of the map below it.

A model lists the steps from the image to the output of each of its blocks, along one side of the
image: `model.receptive_steps(image_size, axis)`. The two sides are separate, since windows, patches
and images may be oblong. Layers that do not widen the range (norms at a position, MLPs, 1 x 1
convolutions) are omitted, and of parallel branches the widest is used.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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
Steps = dict[str, list[Step]]  # by the path of the block


def centred(kernel: int, stride: int = 1) -> Convolution:
    """Return a convolution that is padded by half of its kernel."""
    return Convolution(kernel, stride, kernel // 2)


def patches(size: int) -> Convolution:
    """Return the step of patches that do not overlap."""
    return Convolution(size, size)


def global_steps(strides: Mapping[str, int] | Iterable[tuple[str, int]]) -> Steps:
    """Return the steps of blocks that see the whole image.

    Args:
        strides: pixels of the image for each place of the output, by the path of the block.
    """
    return {path: [Convolution(1, stride), Everything()] for path, stride in dict(strides).items()}
