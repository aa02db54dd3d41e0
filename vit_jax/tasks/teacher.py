"""Teacher: a trained model whose predictions a student learns from.

- It sees the student's image after augmentation, mixing and erasing; only normalisation and
  size are changed to those it was trained with. Its own central crop is not applied, or it would
  see less of the image than the student.
- It is never trained: no dropout, fixed running statistics, no gradient.
"""

import dataclasses
import hashlib
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vit_jax.data import Preprocessing
from vit_jax.data.paths import same_form, some_of
from vit_jax.errors import UserError
from vit_jax.runs import ModelRecord
from vit_jax.weights.resolve import open_weights

# Names of the resize methods in `jax.image.resize`; with anti-aliasing all match Pillow's.
_METHODS = {"bilinear": "linear", "bicubic": "cubic", "lanczos": "lanczos3"}


@dataclasses.dataclass(frozen=True, eq=False)
class Teacher:
    """Trained model, and the conversion of a student's images to its own input.

    source: the name it was opened by. model, variables: with its parameters and other collections.
    preprocessing: its own. of_student: the student's, which normalised the given images.
    activation: "softmax" or "sigmoid", as in its training.
    fingerprint: hash of its parameters.
    """

    source: str
    model: nn.Module
    variables: dict[str, Any]
    preprocessing: Preprocessing
    of_student: Preprocessing
    activation: str
    fingerprint: str

    def __call__(self, images: Float[Array, "batch h w c"]) -> Float[Array, "batch classes"]:
        """Return the logits of images that are normalised for the student."""
        return self.model.apply(self.variables, self.as_its_own(images), train=False)

    def as_its_own(self, images: Float[Array, "batch h w c"]) -> Float[Array, "batch H W c"]:
        """Convert the student's images to the teacher's size and normalisation."""
        mine, theirs = self.preprocessing, self.of_student
        resized = images.shape[1:3] != mine.size
        if not resized and (mine.mean, mine.std) == (theirs.mean, theirs.std):
            return images
        pixels = images * jnp.array(theirs.std) + jnp.array(theirs.mean)  # in the range 0 to 1
        if resized:
            shape = (len(images), *mine.size, images.shape[-1])
            pixels = jax.image.resize(pixels, shape, _METHODS[mine.interpolation], antialias=True)
            pixels = jnp.clip(pixels, 0, 1)  # cubic and Lanczos overshoot the range of images
        return (pixels - jnp.array(mine.mean)) / jnp.array(mine.std)


def open_teacher(
    source: str, of_student: Preprocessing, class_names: tuple[str, ...], *, dtype: str = "float32"
) -> Teacher:
    """Open a teacher by any name that `open_weights` takes, for a student's images and classes.

    Args:
        source: a published name, a file, a run folder, hf://... or https://...
        of_student: the student's preprocessing.
        class_names: of the student's data. A teacher's unnamed classes are assumed to be these, in
            this order.
        dtype: compute type of the teacher.

    Raises:
        UserError: it cannot be read, or its classes, outputs or channels differ.
    """
    try:
        record, variables = open_weights(source)
        model = record.create_model()
        if hasattr(model, "dtype"):
            record = dataclasses.replace(record, fields={**record.fields, "dtype": dtype})
            model = record.create_model()
        _check(record, model, variables, of_student, class_names)
    except UserError as error:
        raise UserError(f"distillation.teacher = {source!r}: {error}") from error
    return Teacher(
        source,
        model,
        variables,
        record.preprocessing,
        of_student,
        record.activation,
        _fingerprint(variables),
    )


def _check(
    record: ModelRecord,
    model: nn.Module,
    variables: dict[str, Any],
    of_student: Preprocessing,
    class_names: tuple[str, ...],
) -> None:
    """Raise UserError if the teacher's classes or channels are not the student's."""
    if record.preprocessing.channels != of_student.channels:
        raise UserError(
            f"it takes images of {record.preprocessing.channels} channels but the student "
            f"{of_student.channels}; use another teacher, or set the channels of the student with "
            f"--config.model.in_channels={record.preprocessing.channels}"
        )
    images = jnp.zeros((1, *record.preprocessing.size, of_student.channels))
    try:
        logits = jax.eval_shape(lambda v: model.apply(v, images, train=False), variables)
    except (ValueError, TypeError) as error:
        raise UserError(f"its model and its parameters do not fit: {error}") from error
    classes = len(class_names)
    if not model.num_classes or logits.shape != (1, classes):
        outputs = "no classifier" if not model.num_classes else f"{logits.shape[-1]:,} outputs"
        raise UserError(
            f"it has {outputs} but the student's data have {classes:,} classes; the teacher needs "
            "one output per class: train or fine-tune it on the same classes"
        )
    if not record.has_names():
        return
    its, ours = ([same_form(name) for name in names] for names in (record.class_names, class_names))
    if its == ours:
        return
    if sorted(its) == sorted(ours):
        said = "its classes are those of the student's data in a different order"
    else:
        said = "its classes are not those of the student's data"
    raise UserError(
        f"{said}: {some_of(its)} and {some_of(ours)}; train it on the same classes, or, if only "
        "the names differ, set its class_names to the student's (python -m vit_jax convert "
        "SOURCE FOLDER --class-names FILE)"
    )


def _fingerprint(variables: dict[str, Any]) -> str:
    """Return a short hash of the parameters."""
    digest = hashlib.blake2b(digest_size=8)
    leaves = jax.tree_util.tree_leaves_with_path(variables)
    for path, leaf in leaves:
        array = np.ascontiguousarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8))
    return digest.hexdigest()
