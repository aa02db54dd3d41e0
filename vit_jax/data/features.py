"""Features: the kinds of array that examples and batches are made of.

An example is a dictionary of features by name, a batch stacks them. A task says what its batches
must hold with a `Feature` for each name: `{"image": Feature("image"), "label": Feature("label")}`.
"""

from dataclasses import dataclass

KINDS = ("image", "label", "mask", "boxes", "depth", "target")
SPATIAL = ("image", "mask", "boxes", "depth")  # what moves when an image is flipped or cropped


@dataclass(frozen=True)
class Feature:
    """Feature of a batch, as a task declares it.

    kind: "image", uint8 pixels, which the step normalises; "label", the class of an image, or a 0
        or 1 for each class; "mask" and "depth", one value per pixel; "boxes"; or "target", any
        other array of a fixed shape.
    shape: of one example; None: that of the model's images, or of the labels.
    views: number of images in a stack, as several views of one photograph; 0: a single one without
        that axis.
    size: height and width of images that do not have the size of the model's.
    """

    kind: str
    shape: tuple[int, ...] | None = None
    views: int = 0
    size: tuple[int, int] | None = None

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"a feature has no kind {self.kind!r}; use {', '.join(KINDS)}")


IMAGE = Feature("image")
LABEL = Feature("label")
