"""Drawing of dense targets over their image: masks, boxes and depth."""

import colorsys
import functools

import numpy as np
from jaxtyping import Float, Float32, Int, UInt8

from vit_jax.data.features import IGNORED, Example, Features, has_area, of_objects

_OPACITY = 0.55  # of a mask over the image
_GOLDEN = 0.6180339887  # steps of the hue, so that neighbours differ most
_COLOURED = (2, 98)  # percentiles of inverse depth between which colours run


@functools.lru_cache(maxsize=8)
def class_colors(count: int) -> UInt8[np.ndarray, "count 3"]:
    """Return bright colours, the same for the same number, whatever the count."""
    colors = [
        colorsys.hsv_to_rgb(number * _GOLDEN % 1, (0.9, 0.6)[number // 5 % 2], 1)
        for number in range(count)
    ]
    made = np.rint(255 * np.array(colors).reshape(-1, 3)).astype(np.uint8)
    made.flags.writeable = False
    return made


def draw_mask(
    image: UInt8[np.ndarray, "h w 3"], mask: Int[np.ndarray, "h w"], *, background: bool = True
) -> UInt8[np.ndarray, "h w 3"]:
    """Return an image with its mask over it; ignored pixels are grey.

    Args:
      background: whether the value 0 is a ground, which is not coloured.
    """
    colors = class_colors(256)[mask.astype(np.int64) % 256]
    colors = np.where((mask == IGNORED)[..., None], np.uint8(128), colors)
    mixed = np.rint((1 - _OPACITY) * image + _OPACITY * colors).astype(np.uint8)
    return np.where(((mask == 0) & background)[..., None], image, mixed)


def draw_boxes(
    image: UInt8[np.ndarray, "h w 3"],
    boxes: Float32[np.ndarray, "n 4"],
    classes: Int[np.ndarray, " n"] | None = None,
) -> UInt8[np.ndarray, "h w 3"]:
    """Return an image with the outlines of boxes, in the colours of their classes in a mask."""
    drawn, (height, width) = image.copy(), image.shape[:2]
    thick = max(1, round(max(height, width) / 200))
    for row in np.flatnonzero(has_area(boxes)):
        color = class_colors(256)[1 + (0 if classes is None else int(classes[row])) % 254]
        left, top = (max(0, round(float(side))) for side in boxes[row, :2])
        right = min(width, max(left + 1, round(float(boxes[row, 2]))))
        bottom = min(height, max(top + 1, round(float(boxes[row, 3]))))
        drawn[top : top + thick, left:right] = color
        drawn[max(top, bottom - thick) : bottom, left:right] = color
        drawn[top:bottom, left : left + thick] = color
        drawn[top:bottom, max(left, right - thick) : right] = color
    return drawn


def draw_depth(depth: Float[np.ndarray, "h w"]) -> UInt8[np.ndarray, "h w 3"]:
    """Return depth as brightness: near is bright, unknown is dark red."""
    known = np.isfinite(depth) & (depth > 0)
    near = np.where(known, 1 / np.where(known, depth, 1), 0)
    if known.any():
        low, high = np.quantile(near[known], (0.02, 0.98))  # a few outliers do not set the scale
        near = np.clip((near - low) / max(high - low, 1e-12), 0, 1)
    grey = np.rint(40 + 215 * near).astype(np.uint8)
    drawn = np.repeat(grey[..., None], 3, axis=2)
    drawn[~known] = 90, 0, 0
    return drawn


def depth_colours(
    depth: Float[np.ndarray, "h w"],
    *,
    relative: bool = False,
    like: Float[np.ndarray, "h w"] | None = None,
) -> UInt8[np.ndarray, "h w 3"]:
    """Return depth in colours: near is bright, unknown is grey.

    Args:
      depth: depths; 0 and what is not finite is unknown.
      relative: whether they are inverse depths up to a factor and a shift, which may be 0.
      like: depths whose colours are to be compared; None: `depth`.
    """
    import matplotlib  # slow to import

    def near(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        known = np.isfinite(values) & (relative | (values > 0))
        values = np.where(known, values, 1).astype(np.float64)
        return values if relative else 1 / values, known

    values, known = near(depth)
    scale, there = (values, known) if like is None else near(like)
    dark, bright = np.percentile(scale[there], _COLOURED) if there.any() else (0, 1)
    shares = np.clip((values - dark) / max(bright - dark, 1e-12), 0, 1)
    colours = matplotlib.colormaps["inferno"](shares)[..., :3]
    colours[~known] = 0.5
    return np.round(255 * colours).astype(np.uint8)


def views(example: Example, features: Features) -> list[UInt8[np.ndarray, "h w 3"]]:
    """Return an example's image, and one image for its masks, for its boxes and for its depth.

    Features of another size than the image are left out.
    """
    image = example["image"]
    image = image[..., :3] if image.shape[2] >= 3 else np.repeat(image[..., :1], 3, axis=2)
    drawn = [image]
    rows = [example[name] for name in of_objects(features) if np.ndim(example[name]) == 1]
    for name, feature in features.items():
        if not feature.spatial or name == "image":
            continue
        array = np.asarray(example[name])
        if feature.kind == "boxes":
            classes = next((row for row in rows if len(row) == len(array)), None)
            drawn.append(draw_boxes(image, array, classes))
        elif array.shape != image.shape[:2]:
            continue
        elif feature.kind == "mask":
            ground = not feature.classes or feature.classes[0] == "background"
            drawn.append(draw_mask(image, array, background=ground))
        elif feature.kind == "depth":
            drawn.append(draw_depth(array))
    return drawn
