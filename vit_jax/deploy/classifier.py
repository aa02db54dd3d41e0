"""A trained classifier: its model, its parameters, and pictures in, labelled probabilities out."""

import functools
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
from jaxtyping import Array, Float, UInt8
from PIL import Image

from vit_jax.data import Preprocessing
from vit_jax.data.decode import Picture
from vit_jax.runs import RunFolder


class Guess(NamedTuple):
    """A class and the probability that a picture shows it."""

    label: str
    probability: float


class Classifier:
    """A model with its parameters, and all that its inputs and outputs mean.

    model: the linen module.
    params: its parameters.
    model_state: other collections of the module, such as running statistics.
    class_names: in the order of the outputs.
    preprocessing: how a picture becomes an input.
    step: of the checkpoint that the parameters come from.
    activation: "softmax", or "sigmoid": yes or no for each class on its own.
    """

    def __init__(
        self,
        model: nn.Module,
        params: Any,
        class_names: Sequence[str],
        preprocessing: Preprocessing,
        model_state: dict[str, Any] | None = None,
        step: int | None = None,
        activation: str = "softmax",
    ):
        self.model = model
        self.params = params
        self.model_state = model_state or {}
        self.class_names = tuple(class_names)
        self.preprocessing = preprocessing
        self.step = step
        self.activation = activation

    @property
    def variables(self) -> dict[str, Any]:
        """What `model.apply` takes first."""
        return {"params": self.params, **self.model_state}

    def logits(self, images: UInt8[np.ndarray, "batch h w c"]) -> Float[Array, "batch classes"]:
        """Logits of preprocessed pictures (the result of `preprocessing`, uint8)."""
        return self._compiled(self.variables, images)

    def predict(
        self, pictures: Picture | Sequence[Picture], top: int | None = None, batch_size: int = 64
    ) -> list[list[Guess]]:
        """The most probable classes of each picture, most probable first.

        Where pictures may have several labels, the probabilities are of each class on its own, and
        do not sum to 1.

        Args:
            pictures: file names, uint8 arrays `(height, width, channels)` or Pillow images, of any
                size; an array `(batch, height, width, channels)` counts as several.
            top: how many classes to give for each picture; all by default.
            batch_size: how many pictures to run at once.

        Raises:
            UserError: for a picture that cannot be read, with its name.
        """
        preprocess = self.preprocessing
        batch = [preprocess(preprocess.decode(picture)) for picture in _as_list(pictures)]
        guesses = []
        for start in range(0, len(batch), batch_size):
            images = np.stack(batch[start : start + batch_size])
            for probabilities in self._probabilities(self.logits(images)):
                order = np.argsort(-probabilities, kind="stable")[:top]
                guesses.append([Guess(self.class_names[i], float(probabilities[i])) for i in order])
        return guesses

    def _probabilities(
        self, logits: Float[Array, "batch outputs"]
    ) -> Float[np.ndarray, "batch classes"]:
        if self.activation == "softmax":
            return np.asarray(jax.nn.softmax(logits))
        yes = np.asarray(jax.nn.sigmoid(logits))
        # A single output of two classes is the logit of the second.
        single = logits.shape[-1] == 1 and len(self.class_names) == 2
        return np.concatenate([1 - yes, yes], axis=-1) if single else yes

    @functools.cached_property
    def _compiled(self):
        def forward(variables, images):
            return self.model.apply(variables, self.preprocessing.normalize(images), train=False)

        return jax.jit(forward)


def load(
    path: str | os.PathLike, checkpoint: int | str = "last", *, raw: bool = False
) -> Classifier:
    """The classifier that a run folder holds: `load("runs/digits").predict("seven.png")`.

    Args:
        path: a run folder, as training writes it.
        checkpoint: "last", "best" (on the validation data, where the run had some), or a step.
        raw: the parameters as they were learned, where the run keeps an average of them too.

    Raises:
        UserError: where there is no such run or checkpoint.
    """
    run = RunFolder(path)
    record = run.read_model()
    variables, step = run.read_variables(checkpoint, raw=raw)
    variables = jax.device_put(variables)  # once, and not with every batch
    params = variables.pop("params")
    return Classifier(
        record.create_model(),
        params,
        record.class_names,
        record.preprocessing,
        variables,
        step,
        record.activation,
    )


def _as_list(pictures: Picture | Sequence[Picture]) -> list[Picture]:
    if isinstance(pictures, np.ndarray):
        return list(pictures) if pictures.ndim == 4 else [pictures]
    if isinstance(pictures, str | bytes | os.PathLike | Image.Image):
        return [pictures]
    return list(pictures)
