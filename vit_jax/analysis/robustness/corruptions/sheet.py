"""Figure of one image under every corruption and severity."""

import numpy as np
from jaxtyping import UInt8
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from vit_jax.analysis.robustness.corruptions import CORRUPTIONS, GROUPS, SEVERITIES, corrupt

# Lengths are in units of an image's width, which is this many inches.
_INCHES = 1.3
_GAP = 0.06
_GROUP_GAP = 0.2
_NAMES, _KINDS, _TITLES = 1.25, 0.3, 0.25  # margins, left, right and above
_COARSE = 64  # smaller images are shown without interpolation


def draw_corruptions(
    image: UInt8[np.ndarray, "height width channels"], rng: np.random.Generator
) -> Figure:
    """Draw a row for each of the fifteen corruptions: the image, then severities 1 to 5.

    Raises:
        UserError: invalid image; see `corrupt`.
    """
    rows = {
        name: [image, *(corrupt(image, name, severity, rng) for severity in SEVERITIES)]
        for name in CORRUPTIONS
    }
    aspect = min(2, max(0.5, image.shape[0] / image.shape[1]))  # more oblong images are squeezed
    wide = (1 + len(SEVERITIES)) * (1 + _GAP) - _GAP
    high = len(rows) * (aspect + _GAP) - _GAP + (len(GROUPS) - 1) * _GROUP_GAP
    figure, panel = _panel(wide, high)
    top, middles = 0.0, []
    for kind, names in GROUPS.items():
        start = top
        for name in names:
            _draw_row(panel, rows[name], top, aspect)
            middles.append(top + aspect / 2)
            top += aspect + _GAP
        middle = (start + top - _GAP) / 2
        panel.text(wide + 0.1, middle, kind, rotation=270, va="center", fontsize=12)
        top += _GROUP_GAP
    panel.set(xlim=(0, wide), ylim=(high, 0))  # changed by `imshow`
    panel.set_yticks(middles, [name.replace("_", " ") for name in rows])
    lefts = np.arange(1 + len(SEVERITIES)) * (1 + _GAP)
    panel.set_xticks(lefts + 0.5, ["image", *(f"severity {number}" for number in SEVERITIES)])
    panel.tick_params(length=0, top=True, labeltop=True, labelbottom=False)
    return figure


def _panel(wide: float, high: float):
    """Create a figure with one frameless panel of that size and margins."""
    size = (_NAMES + wide + _KINDS, _TITLES + high + _GAP)
    figure = Figure(figsize=[_INCHES * length for length in size])
    place = (_NAMES / size[0], _GAP / size[1], wide / size[0], high / size[1])
    panel = figure.add_axes(place)
    panel.spines[:].set_visible(False)
    return figure, panel


def _draw_row(panel, images, top, aspect):
    for column, scaled in enumerate(images):
        height, width = scaled.shape[:2]
        left = column * (1 + _GAP)
        panel.imshow(
            np.broadcast_to(scaled, (height, width, 3)),
            extent=(left, left + 1, top + aspect, top),
            interpolation="nearest" if min(height, width) < _COARSE else "antialiased",
            aspect="auto",
        )
        frame = Rectangle((left, top), 1, aspect, fill=False, edgecolor="0.7", clip_on=False)
        panel.add_patch(frame)  # white and black images need a visible border
