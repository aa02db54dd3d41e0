"""Shape bias of a model, on cue-conflict images whose shape and texture disagree.

    images = list_images("cue-conflict")
    decisions = decide(classifier, images, Categories.read("categories.json", classes))
    decisions.shape_bias

Geirhos et al. (2019), "ImageNet-trained CNNs are biased towards texture", publish 1,280 images in
16 folders, one for each category: `airplane/airplane1-bicycle2.png` has the shape of an aeroplane
and the texture of a bicycle. Images with shape and texture of the same category are skipped, as
there.
"""

import dataclasses
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from vit_jax.analysis.robustness.attacks import class_logits
from vit_jax.data.paths import is_hidden, is_image_name
from vit_jax.errors import UserError, nearest
from vit_jax.evaluation.metrics import NO_ANSWER
from vit_jax.inference import Classifier
from vit_jax.tasks.classification import finite_rows

_NAME = re.compile(r"(?P<shape>.*\D)\d+-(?P<texture>.*\D)\d+")
_FORM = "PATH/airplane/airplane1-bicycle2.png: a folder for each shape; shape, number, -, texture"


class CueImage(NamedTuple):
    """Cue-conflict image with the categories of its shape and its texture."""

    path: Path
    shape: str
    texture: str


@dataclasses.dataclass(frozen=True)
class Categories:
    """Categories, each with the indices of the model's classes that belong to it."""

    classes: Mapping[str, tuple[int, ...]]

    @classmethod
    def named(cls, class_names: Sequence[str]) -> "Categories":
        """Return one category per class, for a model that was trained on the categories."""
        return cls({name: (number,) for number, name in enumerate(class_names)})

    @classmethod
    def read(cls, path: str | os.PathLike, class_names: Sequence[str]) -> "Categories":
        """Read the categories of a JSON file `{category: [class names]}`.

        Raises UserError for other content, and for a class that the model does not have.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"the categories of {path} cannot be read: {error}") from error
        fits = isinstance(content, dict) and all(
            isinstance(names, list) and names and all(isinstance(name, str) for name in names)
            for names in content.values()
        )
        if not fits or not content:
            raise UserError(
                f'{path} must be a JSON object {{"category": ["class name", ...]}}, '
                "each category with at least one class"
            )
        numbers = {name: number for number, name in enumerate(class_names)}
        for category, names in content.items():
            for name in names:
                if name not in numbers:
                    raise UserError(
                        f"{path}: category {category!r} has {name!r}, which is not a "
                        f"class of the model{nearest(name, numbers)}"
                    )
        return cls(
            {category: tuple(numbers[n] for n in names) for category, names in content.items()}
        )

    def probabilities(
        self, probabilities: Float[Array, "batch classes"]
    ) -> Float[np.ndarray, "batch categories"]:
        """Return the mean over the classes of each category, as in Geirhos et al."""
        probabilities = np.asarray(probabilities, np.float64)
        columns = [
            probabilities[:, list(numbers)].mean(axis=1) for numbers in self.classes.values()
        ]
        return np.stack(columns, axis=1)


@dataclasses.dataclass(frozen=True)
class Decisions:
    """Decisions of a model on images whose shape and texture are of different categories.

    categories: their names. shapes, textures, decided: category indices, one for each image;
        decided is `NO_ANSWER` if the model's logits are not finite.
    """

    categories: tuple[str, ...]
    shapes: Int[np.ndarray, " images"]
    textures: Int[np.ndarray, " images"]
    decided: Int[np.ndarray, " images"]

    @property
    def by_shape(self) -> int:
        """Number of decisions for the shape's category."""
        return int((self.decided == self.shapes).sum())

    @property
    def by_texture(self) -> int:
        """Number of decisions for the texture's category."""
        return int((self.decided == self.textures).sum())

    @property
    def shape_bias(self) -> float | None:
        """Fraction of shape among shape or texture decisions; None if there are none."""
        return _share(self.by_shape, self.by_texture)

    def of_shape(self, category: str) -> "Decisions":
        """Return the decisions on images of one shape."""
        chosen = self.shapes == self.categories.index(category)
        columns = (column[chosen] for column in (self.shapes, self.textures, self.decided))
        return Decisions(self.categories, *columns)


def list_images(root: str | os.PathLike) -> list[CueImage]:
    """List the images below a folder in the published layout, sorted by name.

    Raises UserError for another layout, with the expected one.
    """
    root = Path(root).expanduser()
    if not root.is_dir():
        raise UserError(f"{root} is not a folder; expected layout: {_FORM}")
    found = []
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        if is_hidden(folder.name):
            continue
        for path in sorted(folder.iterdir()):
            if is_image_name(path.name) and not is_hidden(path.name):
                parts = _NAME.fullmatch(path.stem)
                if parts is None or parts["shape"] != folder.name:
                    raise UserError(f"{path} does not fit; expected layout: {_FORM}")
                found.append(CueImage(path, parts["shape"], parts["texture"]))
    if not found:
        raise UserError(f"{root} has no images in folders; expected layout: {_FORM}")
    return found


def decide(
    classifier: Classifier,
    images: Sequence[CueImage],
    categories: Categories,
    batch_size: int = 64,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Decisions:
    """Predict the most probable category of every image whose shape and texture differ.

    Args:
        categories: at least those of the images; all of them are candidates.
        progress: called with the number of images done and the total.

    Raises:
        UserError: a category of the images is missing, no image has shape and texture of two
            categories, or one cannot be read.
    """
    names = list(categories.classes)
    for image in images:
        for name in (image.shape, image.texture):
            if name not in names:
                raise UserError(
                    f"{image.path} has the category {name!r}, which the model does "
                    f"not have{nearest(name, names)}; map it to classes of the model with "
                    "Categories.read (--categories=FILE.json), {category: [class names]}"
                )
    images = [image for image in images if image.shape != image.texture]
    if not images:
        raise UserError("no image has shape and texture of two categories")

    @jax.jit
    def forward(variables, pixels):
        pixels = classifier.preprocessing.normalize(pixels)
        logits = classifier.model.apply(variables, pixels, train=False)
        # A sigmoid of one output equals the softmax of the two logits that represent it.
        softmax = classifier.activation == "softmax" or logits.shape[-1] == 1
        probabilities = jax.nn.softmax(class_logits(logits)) if softmax else jax.nn.sigmoid(logits)
        return jnp.where(finite_rows(logits)[:, None], probabilities, jnp.nan)

    decided = []
    for start in range(0, len(images), batch_size):
        progress(start, len(images))
        block = images[start : start + batch_size]
        pixels = np.stack(
            [
                classifier.preprocessing(classifier.preprocessing.decode(image.path))
                for image in block
            ]
        )
        padding = np.zeros((batch_size - len(block), *pixels.shape[1:]), np.uint8)
        probabilities = forward(classifier.variables, jnp.concatenate([pixels, padding]))
        of_categories = categories.probabilities(probabilities[: len(block)])
        finite = np.isfinite(of_categories).all(axis=1)
        decided.append(np.where(finite, of_categories.argmax(axis=1), NO_ANSWER))
    progress(len(images), len(images))
    return Decisions(
        tuple(names),
        np.array([names.index(image.shape) for image in images]),
        np.array([names.index(image.texture) for image in images]),
        np.concatenate(decided),
    )


def _share(one: int, other: int) -> float | None:
    return one / (one + other) if one + other else None
