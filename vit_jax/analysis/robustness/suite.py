"""Suite of robustness tests, each with its levels.

    suite = make_suite((224, 224), only=["corruptions", "pgd"])
    suite[0].change(image, 3, rng)      # gaussian noise of severity 3

A test is either a model-independent change of an image, or an attack on a model. Its levels depend
only on the size of the images, so models with the same image size have the same tests.
"""

import dataclasses
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from vit_jax.analysis.robustness import perturbations
from vit_jax.analysis.robustness.attacks import NORMS
from vit_jax.analysis.robustness.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from vit_jax.analysis.robustness.corruptions.constants import CONSTANTS
from vit_jax.analysis.robustness.perturbations import ImageArray
from vit_jax.errors import UserError, nearest

Change = Callable[[ImageArray, float, np.random.Generator], ImageArray]

CLEAN = "clean"  # unchanged images
RATIOS = tuple(round(0.1 * tenths, 1) for tenths in range(1, 10))
SHARES = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75)
PIECES = (2, 4, 8, 14)
PIXELS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
DEGREES = (5, 10, 15, 20, 30, 45, 60, 90, 135, 180)
EPS = {"linf": tuple(k / 255 for k in (0.5, 1, 2, 4, 8, 16)), "l2": (0.25, 0.5, 1, 2, 3)}
PLACES = 7  # of the sliding square, along each side


@dataclasses.dataclass(frozen=True)
class Attack:
    """Adversarial attack: FGSM, if there is one step from the image, or PGD. norm: linf or l2."""

    name: str
    norm: str
    steps: int


@dataclasses.dataclass(frozen=True)
class Perturbation:
    """One robustness test.

    name: in results. kind: its kind, of `KINDS`.
    levels: ascending. axis: meaning of a level.
    change: function of an image, a level and random numbers; None for an attack.
    attack: the attack, if it is one.
    places: rows and columns of positions of a sliding square; its levels are position numbers.
    """

    name: str
    kind: str
    levels: tuple[float, ...]
    axis: str
    change: Change | None = None
    attack: Attack | None = None
    places: tuple[int, int] | None = None

    def apply(self, image: ImageArray, level: float, seed: int, number: int) -> ImageArray:
        """Return the changed image; random numbers depend on `seed`, test and image number.

        They do not depend on the level: a curve over levels uses the same draws.
        """
        rng = np.random.default_rng((seed, zlib.crc32(self.name.encode()), number))
        return self.change(image, level, rng)


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the tests.

    fill: of hidden areas, "black" or "mean". padding: of exposed areas, "edge" or "zero".
    cells: grid of dropped patches along a side; 0: `usual_cells`.
    steps: of PGD. seed: of all random numbers.
    constants: of corruptions, "imagenet" or "cifar".
    """

    fill: str = "black"
    padding: str = "edge"
    cells: int = 0
    steps: int = 10
    seed: int = 0
    constants: str = "imagenet"

    def __post_init__(self):
        for name, allowed in (
            ("fill", perturbations.FILLS),
            ("padding", perturbations.PADDINGS),
            ("constants", tuple(CONSTANTS)),
        ):
            if getattr(self, name) not in allowed:
                raise UserError(
                    f"{name}={getattr(self, name)} is invalid; use one of {', '.join(allowed)}"
                )


def usual_cells(size: tuple[int, int]) -> int:
    """Return patches per side: 14, as for ViT/16 at 224 pixels, but at least 4 pixels each."""
    return max(1, min(14, min(size) // 4))


def make_suite(
    size: tuple[int, int], only: Sequence[str] = (), options: Options | None = None
) -> tuple[Perturbation, ...]:
    """Return the tests for images of a size.

    Args:
        size: `(height, width)` of the model's input.
        only: kinds of tests, or names of single ones; empty: all; "clean": none, since unchanged
            images are always included.
        options: of the tests.

    Raises:
        UserError: unknown test, or a grid that does not fit the images.
    """
    options = options or Options()
    if options.cells > min(size):
        raise UserError(
            f"a grid of {options.cells} x {options.cells} patches does not fit images of "
            f"{size[0]} x {size[1]} pixels; cells (--grid) is at most {min(size)}"
        )
    tests = [test for make in KINDS.values() for test in make(size, options)]
    known = [CLEAN, *KINDS, *(test.name for test in tests)]
    for name in only:
        if name not in known:
            raise UserError(
                f"there is no robustness test {name!r}{nearest(name, known)}; use "
                f"{', '.join([CLEAN, *KINDS])}, or a single one such as {CORRUPTIONS[0]}"
            )
    return tuple(test for test in tests if not only or {test.kind, test.name} & set(only))


def _corruptions(size: tuple[int, int], options: Options) -> list[Perturbation]:
    def change(name: str) -> Change:
        return lambda image, level, rng: corrupt(
            image, name, int(level), rng, constants=options.constants
        )

    return [
        Perturbation(name, "corruptions", SEVERITIES, "severity", change(name))
        for name in CORRUPTIONS
    ]


def _patch_drop(size: tuple[int, int], options: Options) -> list[Perturbation]:
    cells = options.cells or usual_cells(size)

    def change(order: str) -> Change:
        return lambda image, level, rng: perturbations.drop_patches(
            image, level, cells, rng, order, options.fill
        )

    axis = f"fraction of {cells} x {cells} patches"
    return [
        Perturbation(f"patch_drop_{order}", "patch_drop", RATIOS, axis, change(order))
        for order in perturbations.DROP_ORDERS
    ]


def _occlusion(size: tuple[int, int], options: Options) -> list[Perturbation]:
    side = max(1, min(size) // 4)
    places = perturbations.square_places(size, side, PLACES)

    def grow(image: ImageArray, level: float, rng: np.random.Generator) -> ImageArray:
        return perturbations.occlude(image, level, rng, options.fill)

    def slide(image: ImageArray, level: float, rng: np.random.Generator) -> ImageArray:
        return perturbations.hide_square(image, *places[int(level)], side, options.fill)

    numbers = tuple(range(len(places)))
    return [
        Perturbation(
            "occlusion", "occlusion", SHARES, "side of the square / side of the image", grow
        ),
        Perturbation(
            "occlusion_map",
            "occlusion",
            numbers,
            f"position of a square of {side} pixels",
            slide,
            places=(PLACES, PLACES),
        ),
    ]


def _shuffle(size: tuple[int, int], options: Options) -> list[Perturbation]:
    def change(image: ImageArray, level: float, rng: np.random.Generator) -> ImageArray:
        return perturbations.shuffle_cells(image, int(level), rng)

    levels = tuple(pieces for pieces in PIECES if min(size) // pieces >= 2)
    return [Perturbation("shuffle", "shuffle", levels, "pieces per side", change)]


def _shift(size: tuple[int, int], options: Options) -> list[Perturbation]:
    def change(image: ImageArray, level: float, rng: np.random.Generator) -> ImageArray:
        down, right = ((1, 0), (-1, 0), (0, 1), (0, -1))[rng.integers(4)]
        pixels = int(level)
        return perturbations.shift(image, pixels * down, pixels * right, options.padding)

    levels = tuple(pixels for pixels in PIXELS if pixels <= min(size) // 4)
    return [Perturbation("shift", "shift", levels, "pixels, in one of 4 directions", change)]


def _rotation(size: tuple[int, int], options: Options) -> list[Perturbation]:
    def change(image: ImageArray, level: float, rng: np.random.Generator) -> ImageArray:
        return perturbations.rotate(image, level * rng.choice((-1, 1)), options.padding)

    return [Perturbation("rotation", "rotation", DEGREES, "degrees, in either direction", change)]


def _attacks(name: str) -> Callable[[tuple[int, int], Options], list[Perturbation]]:
    def make(size: tuple[int, int], options: Options) -> list[Perturbation]:
        steps = options.steps if name == "pgd" else 1
        return [
            Perturbation(
                f"{name}_{norm}",
                name,
                EPS[norm],
                f"eps in {norm}, pixels from 0 to 1",
                attack=Attack(name, norm, steps),
            )
            for norm in NORMS
        ]

    return make


KINDS: dict[str, Callable[[tuple[int, int], Options], list[Perturbation]]] = {
    "corruptions": _corruptions,
    "patch_drop": _patch_drop,
    "occlusion": _occlusion,
    "shuffle": _shuffle,
    "shift": _shift,
    "rotation": _rotation,
    "fgsm": _attacks("fgsm"),
    "pgd": _attacks("pgd"),
}
