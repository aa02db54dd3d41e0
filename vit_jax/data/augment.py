"""Random changes of single training pictures, on the host, on uint8 pixels.

Every option names its source, and 0 switches it off: it then costs nothing and draws no random
numbers. Mixing of several pictures (MixUp, CutMix) happens on the device, inside the training step.
"""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from vit_jax.errors import UserError, nearest


@dataclasses.dataclass(frozen=True)
class Augment:
    """Which random changes a training picture goes through, in the order of the options.

    Attributes:
      rotate: largest rotation to either side, in degrees.
      shift: largest shift along each axis, as a fraction of the picture's side.
      scale: largest relative magnification s; the factor is log-uniform in [1/(1+s), 1+s].
      shear: largest horizontal shear, in pixels per pixel of height (the tangent of the slant).
        These four are one affine map with bilinear sampling and black outside, the distortions of
        handwriting of Simard, Steinkraus and Platt (2003), "Best Practices for Convolutional
        Neural Networks Applied to Visual Document Analysis", and of LeCun et al. (1998).
      pad_crop: pixels of black border on every side before a random crop of the old size; 4 on
        CIFAR-10 in He et al. (2016), "Deep Residual Learning", section 4.2.
      flip: probability of a left-right flip; 0.5 in Krizhevsky et al. (2012), section 4.1. Not for
        digits or text.

    Raises:
      UserError: an option is out of its range.
    """

    rotate: float = 0.0
    shift: float = 0.0
    scale: float = 0.0
    shear: float = 0.0
    pad_crop: int = 0
    flip: float = 0.0

    def __post_init__(self):
        for name, (upper, meaning) in _RANGES.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                legal = False
            else:
                legal = 0 <= value <= upper and (name != "pad_crop" or value == int(value))
            if not legal:
                raise UserError(
                    f"augment.{name} is {value!r}; it must be {meaning} from 0 (off) to {upper}"
                )

    @classmethod
    def from_dict(cls, options: Mapping[str, float]) -> "Augment":
        """The instance with these options. Raises UserError on a name that is none."""
        for name in options:
            if name not in _RANGES:
                raise UserError(
                    f"there is no augmentation {name!r}; there are {', '.join(_RANGES)}"
                    + nearest(name, _RANGES)
                )
        return cls(**options)

    def __call__(
        self, image: UInt8[np.ndarray, "h w c"], rng: np.random.Generator
    ) -> UInt8[np.ndarray, "h w c"]:
        """A changed copy of the picture, or the picture itself where nothing is switched on."""
        if self.rotate or self.shift or self.scale or self.shear:
            image = self._affine(image, rng)
        if self.pad_crop:
            image = _pad_crop(image, self.pad_crop, rng)
        if self.flip and rng.random() < self.flip:
            image = image[:, ::-1]
        return image

    def _affine(
        self, image: UInt8[np.ndarray, "h w c"], rng: np.random.Generator
    ) -> UInt8[np.ndarray, "h w c"]:
        height, width, channels = image.shape
        turn, right, down, zoom, slant = rng.uniform(-1, 1, size=5).tolist()
        angle = math.radians(self.rotate) * turn
        shear = self.shear * slant
        shrink = (1 + self.scale) ** -zoom
        cos, sin = math.cos(angle) * shrink, math.sin(angle) * shrink
        # Pillow wants the inverse map: from a pixel of the result to its place in the picture,
        # (a b; d e), the shear applied last. The centre of the picture stays, but for the shift.
        a, b = cos + shear * sin, -sin + shear * cos
        d, e = sin, cos
        to_x = width / 2 + self.shift * width * right
        to_y = height / 2 + self.shift * height * down
        c = width / 2 - a * to_x - b * to_y
        f = height / 2 - d * to_x - e * to_y
        flat = image[:, :, 0] if channels == 1 else image
        moved = Image.fromarray(flat).transform(
            (width, height),
            Image.Transform.AFFINE,
            (a, b, c, d, e, f),
            Image.Resampling.BILINEAR,
        )
        return np.frombuffer(moved.tobytes(), np.uint8).reshape(image.shape)


_RANGES = {
    "rotate": (180, "degrees"),
    "shift": (1, "a fraction of the picture's side"),
    "scale": (10, "a relative magnification"),
    "shear": (10, "a slant in pixels per pixel"),
    "pad_crop": (1024, "a whole number of pixels"),
    "flip": (1, "a probability"),
}


def _pad_crop(
    image: UInt8[np.ndarray, "h w c"], border: int, rng: np.random.Generator
) -> UInt8[np.ndarray, "h w c"]:
    height, width, channels = image.shape
    top, left = rng.integers(0, 2 * border + 1, size=2)
    padded = np.zeros((height + 2 * border, width + 2 * border, channels), np.uint8)
    padded[border : border + height, border : border + width] = image
    return padded[top : top + height, left : left + width]
