"""Synthetic images of frost: ferns of ice on glass.

ImageNet-C overlays photographs of frost on its images. Their origin is unknown, so these are drawn
instead, with similar brightness and contrast; the photographs can be passed to `corrupt`.
"""

import dataclasses
import functools

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

_HEIGHT, _WIDTH = 320, 480
_FINER = 2  # drawn at twice the size and shrunk, which smooths the lines


@dataclasses.dataclass(frozen=True)
class _Look:
    """Parameters of an image of frost: its glass, and the ferns on it.

    glass, ice: RGB colours from 0 to 255. ferns: their number. length: of a stem, in pixels. mist:
    fraction of the glass covered by mist.
    """

    glass: tuple[int, int, int]
    ice: tuple[int, int, int]
    ferns: int
    length: float
    mist: float


# Means and deviations of brightness are near those of the photographs of ImageNet-C: a bluish one,
# two white ones, and two of white ferns on darker glass.
_LOOKS = (
    _Look(glass=(25, 120, 140), ice=(150, 190, 205), ferns=130, length=60, mist=0.7),
    _Look(glass=(145, 150, 158), ice=(255, 255, 255), ferns=300, length=70, mist=0.75),
    _Look(glass=(145, 150, 158), ice=(255, 255, 255), ferns=600, length=40, mist=0.75),
    _Look(glass=(65, 80, 92), ice=(225, 238, 250), ferns=450, length=30, mist=0.6),
    _Look(glass=(30, 42, 55), ice=(240, 250, 255), ferns=200, length=55, mist=0.4),
)


@functools.cache
def frost_textures() -> tuple[UInt8[np.ndarray, "320 480 3"], ...]:
    """Return five images of frost, always the same."""
    return tuple(_texture(look, np.random.default_rng(i)) for i, look in enumerate(_LOOKS))


def _texture(look: _Look, rng: np.random.Generator) -> UInt8[np.ndarray, "320 480 3"]:
    """Draw ice in front of glass, with the opacity of mist and ferns together."""
    ice = np.maximum(look.mist * _mist(rng), _ferns(look, rng))
    ice = np.clip(ice + rng.normal(0, 0.03, ice.shape), 0, 1)[..., None]
    scaled = ice * np.array(look.ice) + (1 - ice) * np.array(look.glass)
    return np.clip(scaled, 0, 255).astype(np.uint8)


def _mist(rng: np.random.Generator) -> Float[np.ndarray, "320 480"]:
    """Draw a soft cloud from 0 to 1: noise of four sizes, the large ones strongest."""
    cloud = np.zeros((_HEIGHT, _WIDTH))
    for cell in (160, 80, 40, 10):
        noise = rng.random((_HEIGHT // cell + 1, _WIDTH // cell + 1)).astype(np.float32)
        layer = Image.fromarray(noise).resize((_WIDTH, _HEIGHT), Image.Resampling.BICUBIC)
        cloud += cell**0.5 * np.asarray(layer)
    cloud -= cloud.min()
    return cloud / cloud.max()


def _ferns(look: _Look, rng: np.random.Generator) -> Float[np.ndarray, "320 480"]:
    """Draw ferns in clusters around random positions, faint ones first; from 0 to 1."""
    canvas = Image.new("L", (_WIDTH * _FINER, _HEIGHT * _FINER))
    draw = ImageDraw.Draw(canvas)
    for strength in np.sort(rng.uniform(0.2, 1, look.ferns)):
        root = rng.uniform(0, canvas.size)
        length = _FINER * look.length * rng.lognormal(0, 0.4)
        for direction in rng.uniform(0, 2 * np.pi, rng.integers(1, 5)):
            _draw_fern(draw, root, direction, length, 255 * strength, rng)
    return np.asarray(canvas.resize((_WIDTH, _HEIGHT), Image.Resampling.BOX)) / 255


def _draw_fern(
    draw: ImageDraw.ImageDraw,
    root: Float[np.ndarray, "2"],
    direction: float,
    length: float,
    strength: float,
    rng: np.random.Generator,
) -> None:
    """Draw a bent stem, and needles at 60 degrees from it, shorter towards the tip."""
    spacing = 2 * _FINER
    steps = np.arange(length // spacing + 2)
    directions = direction + rng.normal(0, 0.012) * steps
    stem = root + spacing * np.cumsum(_unit(directions), axis=0)
    reach = 0.3 * (length - spacing * steps).clip(0) * rng.uniform(0.4, 1, steps.size)
    left, right = (stem + reach[:, None] * _unit(directions + a) for a in (-np.pi / 3, np.pi / 3))
    leaf = np.concatenate([stem[:1], left, right[::-1]])
    draw.polygon(leaf.ravel().tolist(), fill=int(rng.uniform(0.1, 0.7) * strength))
    needles = np.stack([stem, left, stem, right, stem], axis=1)
    draw.line(needles.ravel().tolist(), fill=int(0.8 * strength), width=1)
    draw.line(stem.ravel().tolist(), fill=int(strength), width=_FINER)


def _unit(directions: Float[np.ndarray, " steps"]) -> Float[np.ndarray, "steps 2"]:
    """Return vectors of length 1."""
    return np.stack([np.cos(directions), np.sin(directions)], axis=-1)
