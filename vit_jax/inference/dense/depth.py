"""Depth estimator: a trained model that gives the distance of every pixel of an image.

    estimator = load("runs/depth")
    depth = estimator("room.jpg")[0]                # float32 (height, width) of the image
    estimator.write("out", "room", depth, pixels)   # room_depth.png, room_colours.png

A model of depths gives them in the unit of its data; one up to a factor and a shift gives inverse
depths, larger where it is nearer.
"""

import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Array, Float, Float32, UInt8, UInt16
from PIL import Image

from vit_jax.data.images.decoding import ImageLike
from vit_jax.data.images.preprocess import Preprocessing
from vit_jax.data.inspect.overlays import depth_colours
from vit_jax.inference.predictor import BATCH, ArraySpec, Outputs, Predictor
from vit_jax.inference.streaming import named_images
from vit_jax.models.fields import pair
from vit_jax.models.positions.tables import resize_matrix

BATCH_SIZE = 16
_MOST = 2**16 - 1  # in a PNG of 16 bits
_MOST_RATIO = 8  # of the sides of an input
PER_UNIT = 1000  # steps of such a PNG in a unit of depth: millimetres of metres


class DepthEstimator(Predictor):
    """Trained model of depth: `load("runs/depth")(["one.png", "two.png"])`.

    keeps_ratio: whether an image keeps its aspect ratio, so that its shorter side has the size of
        the model's input, see `fitting_size`; each size is compiled once. None: where images would
        be squashed otherwise, as of published weights.
    """

    usage: ClassVar[str] = "take its depths with vit_jax.load({path!r})(images)"
    files: ClassVar[str] = "a PNG of 16 bits and a coloured one for each image"
    keeps_ratio: bool | None = None

    @property
    def is_relative(self) -> bool:
        """Return whether it gives inverse depths up to a factor and a shift."""
        return getattr(self.model, "is_relative", False)

    @property
    def outputs(self) -> dict[str, ArraySpec]:
        """The depth of each pixel of the input."""
        what = "inverse depths up to a factor and a shift" if self.is_relative else "depths"
        return {"depth": ArraySpec((BATCH, *self.preprocessing.size), "float32", what)}

    def function(self, variables: Any, images: Array) -> Outputs:
        """Return the depths of preprocessed images."""
        images = self.preprocessing.normalize(images)
        return {"depth": self.model.apply(variables, images, train=False)}

    def sized_result(
        self, outputs: dict[str, np.ndarray], size: tuple[int, int]
    ) -> Float32[np.ndarray, "height width"]:
        """Return the depths of an image of a (height, width); NaN where the input has no pixel."""
        return in_image(outputs["depth"], self.preprocessing, size)

    def __call__(
        self, images: ImageLike | Iterable[ImageLike], batch_size: int = BATCH_SIZE
    ) -> list[Float32[np.ndarray, "height width"]]:
        """Return the depths of each image, in its size, in order.

        Args:
            images: as for any predictor: files, folders, arrays, Pillow images, or an iterable.
            batch_size: number of images to run at once, where all have one size.

        Raises:
            UserError: an image cannot be read.
        """
        keeps = self.keeps_ratio
        if keeps is None:
            keeps = self.preprocessing.resize == "squash" and self.preprocessing.crop == 1.0
        if not keeps:
            return super().__call__(images, batch_size)
        return [self._in_own_ratio(image) for image in _decoded(images, self.preprocessing)]

    def to_json(self, result: Float[np.ndarray, "height width"]) -> dict[str, Any]:
        """Return height, width, and the least, the median and the largest depth, as JSON values."""
        known = result[np.isfinite(result)]
        names = ("least", "median", "largest")
        depths = np.quantile(known, (0, 0.5, 1)).tolist() if known.size else [None] * 3
        height, width = result.shape
        about = {"height": height, "width": width, "is_relative": self.is_relative}
        return {**about, "depth": dict(zip(names, depths, strict=True))}

    def write(
        self,
        folder: str | Path,
        stem: str,
        depth: Float[np.ndarray, "height width"],
        image: UInt8[np.ndarray, "height width channels"] | None = None,
    ) -> list[Path]:
        """Write `STEM_depth.png`, of 16 bits, and `STEM_colours.png` into a folder.

        Depths are in thousandths of their unit, at most 65.535 of it; inverse depths run from 1 to
        65,535 between the smallest and the largest. 0 is unknown.
        """
        del image
        paths = [Path(folder) / f"{stem}_{what}.png" for what in ("depth", "colours")]
        Image.fromarray(as_steps(depth, relative=self.is_relative)).save(paths[0])
        Image.fromarray(depth_colours(depth, relative=self.is_relative)).save(paths[1])
        return paths

    def _in_own_ratio(self, image: UInt8[np.ndarray, "h w c"]) -> Float32[np.ndarray, "h w"]:
        size = fitting_size(image.shape[:2], min(self.preprocessing.size), self._multiple)
        changes = {"size": size, "resize": "squash", "crop": 1.0}
        pixels = dataclasses.replace(self.preprocessing, **changes)(image)
        found = self._compiled_function(self.variables, pixels[None])["depth"]
        return resized(np.asarray(jax.device_get(found))[0], image.shape[:2])

    @property
    def _multiple(self) -> int:
        """Sides of inputs are multiples of it: of two patches, but for Depth Anything of one."""
        patch = math.lcm(*pair(getattr(self.model, "patch_size", 1)))
        return patch if getattr(self.model, "normed", False) else 2 * patch


def fitting_size(image: tuple[int, int], shortest: int, multiple: int) -> tuple[int, int]:
    """Return the input size for an image of a (height, width) that keeps its aspect ratio.

    Both sides are the nearest multiples, and not below `shortest`: "lower_bound" in the code of
    MiDaS, DPT and Depth Anything. An image longer than `_MOST_RATIO` of its shorter sides counts as
    one of that ratio, since a strip would become more tokens than fit into any memory.

    >>> fitting_size((480, 640), 518, 14)
    (518, 686)
    """
    scale = shortest / min(image)
    image = tuple(min(side, _MOST_RATIO * min(image)) for side in image)

    def fitted(side: int) -> int:
        nearest = round(scale * side / multiple) * multiple
        return nearest if nearest >= shortest else math.ceil(scale * side / multiple) * multiple

    return fitted(image[0]), fitted(image[1])


def in_image(
    depth: Float[np.ndarray, "h w"], preprocessing: Preprocessing, size: tuple[int, int]
) -> Float32[np.ndarray, "height width"]:
    """Return the depths of an input in the pixels of its image; NaN where it shows none of them.

    Args:
        size: (height, width) of the image.
    """
    region = preprocessing.region(*size)
    top, left = region.offset
    rows, columns = region.size
    seen = depth[top : top + rows, left : left + columns]
    from_left, from_top, to_right, to_bottom = (round(side) for side in region.box)
    found = np.full(size, np.nan, np.float32)
    inside = (max(to_bottom - from_top, 1), max(to_right - from_left, 1))
    found[from_top : from_top + inside[0], from_left : from_left + inside[1]] = resized(
        seen, inside
    )
    return found


def resized(
    depth: Float[np.ndarray, "h w"], size: tuple[int, int]
) -> Float32[np.ndarray, "height width"]:
    """Return depths in another size, bilinear with corners aligned, as the authors do it."""
    rows, columns = (
        resize_matrix("corner-bilinear", source, target).astype(np.float32)
        for source, target in zip(depth.shape, size, strict=True)
    )
    return rows @ depth.astype(np.float32) @ columns.T


def as_steps(
    depth: Float[np.ndarray, "height width"], *, relative: bool
) -> UInt16[np.ndarray, "height width"]:
    """Return the whole numbers of a PNG of 16 bits; 0 is unknown."""
    known = np.isfinite(depth) & (relative | (depth > 0))
    steps = np.zeros(depth.shape, np.float64)
    if relative and known.any():
        least, most = depth[known].min(), depth[known].max()
        steps[known] = 1 + (_MOST - 1) * (depth[known] - least) / max(most - least, 1e-12)
    elif known.any():
        steps[known] = np.clip(PER_UNIT * depth[known], 1, _MOST)
    return np.round(steps).astype(np.uint16)


def _decoded(
    images: ImageLike | Iterable[ImageLike], preprocessing: Preprocessing
) -> Iterable[UInt8[np.ndarray, "h w c"]]:
    """Yield the pixels of images as they are in their files."""
    for name, image in named_images(images):
        if isinstance(image, Exception):
            raise image
        yield preprocessing.decode(image, name=name)
