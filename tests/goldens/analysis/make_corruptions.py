"""Makes the golden file of images that `imagecorruptions` 1.1.2 corrupts, and compares with ours.

    python -m tests.goldens.analysis.make_corruptions [IMAGE]

needs `imagecorruptions==1.1.2` with setuptools below 81, OpenCV and scikit-image, which the tests
do not. The file, `tests/goldens/analysis/corruptions.npz`, has a drawn `image (48, 34, 3)`,
images to lay over it as frost, `texture/0` to `texture/4`, larger and smaller than it, and what
becomes of it by each corruption and severity, `snow/3 (48, 34, 3)`. It prints the largest and the
mean difference from this library's results, in grey levels of 255, for that image, or for a
IMAGE of yours, which is not stored.

The reference draws from numpy's global state; here it is handed a generator, whose seed is 31
times the number of the corruption, from 0, plus the severity: with those, each texture is taken
once, and the longest motion leaves the image. Two functions are mended for newer libraries:
scikit-image's `gaussian` had an argument `multichannel`, and numpy a `float_`. Images of frost
are handed to it as well, in the place of the photographs it comes with.
"""

import sys
import types
from functools import partial
from pathlib import Path

import cv2
import imagecorruptions
import numpy as np
import skimage.filters
import skimage.util
from imagecorruptions import corruptions as reference
from PIL import Image

from vit_jax.analysis.robustness.corruptions import CORRUPTIONS, SEVERITIES, corrupt

HEIGHT, WIDTH = 48, 34  # narrower than the longest motion
FROST = ((60, 90), (30, 90), (60, 30), (30, 25), (50, 61))


def main():
    frost = [frost_of(*sides, seed) for seed, sides in enumerate(FROST)]
    if len(sys.argv) > 1:
        compare(np.asarray(Image.open(sys.argv[1]).convert("RGB")), frost)
        return
    arrays = {"image": drawn(), **{f"texture/{i}": texture for i, texture in enumerate(frost)}}
    arrays |= compare(arrays["image"], frost)
    path = Path(__file__).with_name("corruptions.npz")
    np.savez_compressed(path, **arrays)
    print(f"{path.stat().st_size / 1000:.0f} kB")


def compare(image, frost):
    """Prints a table of differences; returns the reference's images."""
    kept = {}
    print(f"{'largest / mean difference at severity':38}" + "".join(f"{s:<15}" for s in SEVERITIES))
    for number, name in enumerate(CORRUPTIONS):
        cells = []
        for severity in SEVERITIES:
            seed = 31 * number + severity
            theirs = by_reference(image, name, severity, seed, frost)
            ours = corrupt(image, name, severity, np.random.default_rng(seed), frost=frost)
            difference = abs(ours.astype(int) - theirs)
            cells.append(f"{difference.max():>2} {difference.mean():<12.5f}")
            kept[f"{name}/{severity}"] = theirs
        print(f"{name:38}" + "".join(cells))
    return kept


def by_reference(image, name, severity, seed, frost):
    rng = np.random.default_rng(seed)

    def random(method):
        return lambda *args, **kwargs: getattr(rng, method)(*args, **kwargs)

    numbers = types.SimpleNamespace(
        normal=random("normal"),
        poisson=random("poisson"),
        uniform=random("uniform"),
        randint=random("integers"),
    )
    reference.np = Patched(np, random=numbers, float_=np.float64)
    noise = types.SimpleNamespace(random_noise=partial(skimage.util.random_noise, rng=rng))
    reference.sk = Patched(skimage, util=noise)
    reference.gaussian = gaussian
    reference.resource_filename = lambda package, path: int(Path(path).stem[-1]) - 1
    # OpenCV reads blue first.
    reference.cv2 = Patched(cv2, imread=lambda index: frost[index][..., ::-1].copy())
    return imagecorruptions.corrupt(image, severity, name)


class Patched:
    """A module, some of whose names are others."""

    def __init__(self, module, **names):
        self.__dict__.update(names)
        self._module = module

    def __getattr__(self, name):
        return getattr(self._module, name)


def gaussian(image, sigma, multichannel=False, **options):
    return skimage.filters.gaussian(
        image, sigma, channel_axis=-1 if multichannel else None, **options
    )


def drawn():
    """An image with slopes, edges, saturated, black and white areas, a grating and noise."""
    rows, columns = np.indices((HEIGHT, WIDTH))
    image = np.stack([6 * columns, 5 * rows, 255 - 2 * rows - 3 * columns], axis=-1)
    image[4:16, 16:31] = (250, 20, 40)
    image[19:33, 2:12] = 255
    image[23:29, 5:9] = 0
    image[(rows - 25) ** 2 + (columns - 22) ** 2 < 60] = (30, 90, 240)
    image[36:46, 18:32] = (30 * (columns % 8) + 20)[36:46, 18:32, None]
    image[38:, :12] = np.random.default_rng(0).integers(0, 256, (10, 12, 3))
    return np.clip(image, 0, 255).astype(np.uint8)


def frost_of(height, width, seed):
    coarse = np.random.default_rng(seed).integers(60, 256, (height // 5 + 1, width // 5 + 1, 3))
    return np.kron(coarse, np.ones((5, 5, 1), int))[:height, :width].astype(np.uint8)


if __name__ == "__main__":
    main()
