"""Features: the named arrays of an example, each of a kind.

    {"image": Feature("image"), "label": Feature("label")}          # a labelled source
    {"image": Feature("image"), "depth": Feature("depth")}          # a source of one's own
    {"image": Feature("image", views=2)}                            # what two-view training wants

- A source lists the features of its examples (`Source.features`), a transform may change them, and
  a task lists those that it needs (`inputs`). `check_inputs` compares them before anything runs.
- Spatial features belong to the pixels of the image: what moves the image moves them too.
- Every feature has one shape in all examples, after preprocessing, because a batch stacks them.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from vit_jax.errors import UserError, nearest

if TYPE_CHECKING:
    from vit_jax.data.sources.source import Source

Example = dict[str, Any]
"""Arrays of one example by name: uint8 `image` (h, w, c), `label` if there is one, and others.

Where it is a clip, `image` is (frames, h, w, c).
"""


@dataclasses.dataclass(frozen=True)
class Kind:
    """Properties of a kind of feature.

    Attributes:
      spatial: whether its values belong to pixels of the image.
      fill: value of pixels that no image covers.
    """

    spatial: bool = False
    fill: int = 0


KINDS: Mapping[str, Kind] = {
    "image": Kind(spatial=True),  # uint8 (h, w, c)
    "video": Kind(spatial=True),  # uint8 (frames, h, w, c): a clip, in place of the image
    # Whole numbers (h, w), a class for each pixel; 255 is ignored, as in Pascal VOC.
    "mask": Kind(spatial=True, fill=255),
    # Whole numbers (h, w): 0 is no object, k the object of row k - 1 of the boxes.
    "instances": Kind(spatial=True),
    "depth": Kind(spatial=True),  # (h, w), in the unit of the source; 0 is unknown
    # float32 (n, 4): left, top, right, bottom in pixels; a row without area is padding.
    "boxes": Kind(spatial=True),
    "label": Kind(),  # a class, or a 0 or 1 for each class
    "text": Kind(),  # int32 (length,): ids of tokens, which no transform changes
    "target": Kind(),  # any other array, which no transform changes
}


@dataclasses.dataclass(frozen=True)
class Feature:
    """Feature of examples, as a source gives it or as a task wants it.

    Attributes:
      kind: one of `KINDS`.
      shape: shape in an example, without the batch; None: not stated.
      views: number of augmented versions, stacked along a new first axis; 0: a single one without
        that axis.
      size: (height, width) of an image that has another size than the model's input; None: its own.
      classes: the name of each of its values, from 0, if these are classes: of a mask with its
        background, if it has one.
      partial: of a source, that some examples lack it, and have a neutral value; of a task, that
        they may.

    Raises:
      UserError: the kind is unknown.
    """

    kind: str
    shape: tuple[int, ...] | None = None
    views: int = 0
    size: tuple[int, int] | None = None
    classes: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    partial: bool = dataclasses.field(default=False, repr=False)

    def __post_init__(self):
        if self.kind not in KINDS:
            raise UserError(
                f"there is no kind of feature {self.kind!r}; use one of {', '.join(KINDS)}"
                + nearest(str(self.kind), KINDS)
            )

    @property
    def spatial(self) -> bool:
        """Return whether its values belong to pixels of the image."""
        return KINDS[self.kind].spatial


Features = Mapping[str, Feature]

IMAGE, LABEL = Feature("image"), Feature("label")
CLIP = Feature("video")
IMAGES: Features = {"image": IMAGE}
LABELLED: Features = {"image": IMAGE, "label": LABEL}

SOFT_LABEL = "soft_label"
"""Name of the feature with the probability of each class, float32 (classes,), beside a `label`.

The label is the most probable class, or for multi-label data 1 where this is above 1/2. The feature
is of kind target.
"""

IGNORED = KINDS["mask"].fill  # the value of pixels of masks that do not count

_OF_EVALUATION = "mask"  # the key of evaluation batches that marks padding


def have_classes(features: Features) -> bool:
    """Return whether a feature has names of classes: labels, or objects and pixels."""
    return "label" in features or any(feature.classes for feature in features.values())


def of_objects(features: Features) -> dict[str, Feature]:
    """Return the features that say the classes of objects, in the order of the rows of boxes."""
    return {
        name: feature
        for name, feature in features.items()
        if feature.classes and not feature.spatial
    }


def has_area(boxes: Float[np.ndarray, "n 4"]) -> Bool[np.ndarray, " n"]:
    """Return which rows are boxes, not padding."""
    return (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])


def has_clips(features: Features) -> bool:
    """Return whether the image of an example is a clip."""
    return features["image"].kind == "video"


def check_names(features: Features, where: str) -> None:
    """Raise UserError unless a feature is the image, or a clip, and no name is reserved."""
    if "image" not in features or features["image"].kind not in ("image", "video"):
        raise UserError(
            f"{where} has the features {', '.join(features) or 'none'}; one must be 'image', of"
            " kind image, or video"
        )
    others = [name for name, of in features.items() if of.spatial and name != "image"]
    if has_clips(features) and others:
        raise UserError(
            f"{where} has clips with {', '.join(others)} for their pixels, which is not supported;"
            " give features of a whole clip the kind target"
        )
    if _OF_EVALUATION in features:
        raise UserError(
            f"{where} has a feature with the name {_OF_EVALUATION!r}, which marks the padding of"
            " evaluation batches; give it another name, such as 'segmentation'"
        )


def check_inputs(
    inputs: Features,
    source: "Source",
    *,
    features: Features | None = None,
    wanted_by: str = "the task",
) -> None:
    """Raise UserError, in one sentence with a remedy, unless a source gives what a task needs.

    Args:
      inputs: the features that batches must have.
      source: the examples.
      features: those after augmentation (`train_features`); default: those of the source.
      wanted_by: what needs them, for the message, such as `the task classification`.
    """
    there = source.features if features is None else features
    where = f"{source.name} {source.split}"
    for name, wanted in inputs.items():
        found = there.get(name)
        if found is None and wanted.kind == "label":
            raise UserError(
                f"{where} has no labels, but {wanted_by} needs them: {source.why_unlabelled}"
            )
        if found is None and name == "text":
            raise UserError(
                f"{where} has no captions, but {wanted_by} needs them; use a file with a column"
                " 'caption' (csv:PATH, jsonl:PATH), or captions:DATASET, which makes them of the"
                " names of the classes"
            )
        if found is None:
            raise UserError(
                f"{where} gives no {name!r} ({wanted.kind}), which {wanted_by} needs; it gives"
                f" {', '.join(there)}{nearest(name, there)}; use a source or a transform that adds"
                " it"
            )
        is_clip = (found.kind, wanted.kind) == ("video", "image")  # see `check_clips`
        if found.kind != wanted.kind and not is_clip:
            raise UserError(
                f"{name!r} of {where} is of kind {found.kind}, but {wanted_by} needs the kind"
                f" {wanted.kind}; rename one of them"
            )
        if found.partial and not wanted.partial:
            raise UserError(
                f"some examples of {where} have no {name!r}, but {wanted_by} needs it of each; use"
                " datasets that all give it, or --config.task=multitask, whose heads learn from the"
                " examples that have it"
            )
        if features is not None and wanted.views != found.views:
            raise UserError(
                f"{wanted_by} needs {_views(wanted)} of {name!r}, but training makes"
                f" {_views(found)}; the number is set by the augmentation (Views or MultiCrop)"
            )


def _views(feature: Feature) -> str:
    return f"{feature.views} views" if feature.views else "a single version"


def stacked(name: str, arrays: list[Any]) -> np.ndarray:
    """Stack a feature of some examples; whole numbers become int32, 64-bit floats float32.

    Raises:
      UserError: the shapes differ.
    """
    arrays = [np.asarray(array) for array in arrays]
    shapes = sorted({array.shape for array in arrays})
    if len(shapes) > 1:
        raise UserError(
            f"the feature {name!r} has the shape {shapes[0]} in one example and {shapes[1]} in"
            " another; a batch needs one shape, so the source must pad it"
        )
    dtype = {"i": np.int32, "u": np.uint32, "f": np.float32}.get(arrays[0].dtype.kind)
    is_wide = arrays[0].dtype.itemsize == 8
    return np.stack(arrays).astype(dtype if is_wide and dtype else arrays[0].dtype, copy=False)
