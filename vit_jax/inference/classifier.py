"""Trained classifier: a model with parameters, from images to labelled probabilities."""

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Float32, UInt8

from vit_jax.data.images.decoding import ImageLike
from vit_jax.data.images.preprocess import Preprocessing
from vit_jax.data.paths import as_text
from vit_jax.errors import UserError
from vit_jax.inference.programs import program
from vit_jax.inference.streaming import ReadBatch, read_batches
from vit_jax.runs import ModelRecord, RunDir

if TYPE_CHECKING:  # a cached program runs without linen
    import flax.linen as nn

    from vit_jax.inference.encoder import Encoder

BATCH_SIZE = 64


class Prediction(NamedTuple):
    """Class and its probability for an image."""

    label: str
    probability: float


class ImageResult(NamedTuple):
    """Result of a classifier for one image of a stream.

    name: the path, or the image's number without a path.
    probabilities: of all classes, in the order of `class_names`; None with an error.
    error: the image cannot be read, or the model's outputs for it are not finite numbers.
    """

    name: str
    probabilities: Float32[np.ndarray, " classes"] | None
    error: UserError | None = None


class Classifier:
    """Model with its parameters, its preprocessing and its class names.

    model: the linen module.
    params: its parameters.
    model_state: other collections of the module, such as running statistics.
    class_names: in the order of the outputs.
    preprocessing: preprocessing of images to inputs.
    step: step of the parameters' checkpoint.
    activation: "softmax", or "sigmoid" for independent classes.
    """

    def __init__(
        self,
        model: "nn.Module",
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
        self._record: ModelRecord | None = None

    @classmethod
    def of_record(
        cls, record: ModelRecord, variables: dict[str, Any], step: int | None = None
    ) -> "Classifier":
        """Return the classifier of a record; its model is created at the first use.

        variables: {"params": ..., and any other collections}, put on the device here.
        """
        state = dict(jax.device_put(variables))  # once, and not with every batch
        params = state.pop("params")
        names, preprocessing = record.class_names, record.preprocessing
        classifier = cls(None, params, names, preprocessing, state, step, record.activation)
        del classifier.model
        classifier._record = record
        return classifier

    @functools.cached_property
    def model(self) -> "nn.Module":
        """Linen module of the model."""
        return self._record.create_model()

    @property
    def variables(self) -> dict[str, Any]:
        """Variables, the first argument of `model.apply`."""
        return {"params": self.params, **self.model_state}

    def logits(self, images: UInt8[np.ndarray, "batch h w c"]) -> Float[Array, "batch classes"]:
        """Return the logits of preprocessed images (the result of `preprocessing`, uint8).

        Raises UserError for images of another size or type than the result of `preprocessing`.
        """
        expected = (*self.preprocessing.size, self.preprocessing.channels)
        if images.shape[1:] != expected or images.dtype != np.uint8:
            raise UserError(
                f"images of type {images.dtype} and shape {images.shape} are not preprocessed; "
                f"they must be uint8 of shape (batch, {', '.join(map(str, expected))}): "
                "use np.stack on classifier.preprocessing(image) of each, or predict, which takes "
                "any size"
            )
        variables = self.variables
        return self._program(images.shape)(variables, images)

    def predict(
        self,
        images: ImageLike | Iterable[ImageLike],
        top: int | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> list[list[Prediction]]:
        """Return the most probable classes of each image, most probable first.

        For multi-label models the probabilities are independent and do not sum to 1.

        Args:
            images: file names, folders, bytes of image files, uint8 arrays `(height, width,
                channels)` or Pillow images, of any size; an array `(batch, height, width,
                channels)` is several images. Any iterable of these is read lazily.
            top: number of classes to return for each image; all by default.
            batch_size: number of images to run at once.

        Raises:
            UserError: an image cannot be read; the message has its name.
        """
        guesses = []
        for result in self.iter_predict(images, batch_size):
            if result.error is not None:
                raise result.error
            guesses.append(self.top_classes(result.probabilities, top))
        return guesses

    def iter_predict(
        self, images: ImageLike | Iterable[ImageLike], batch_size: int = BATCH_SIZE
    ) -> Iterator[ImageResult]:
        """Yield the probabilities of any number of images, in order, as they are computed.

        Threads decode images while the model runs. Only a few batches are in memory. An unreadable
        image is a result with an error, and the following images are still processed.

        Args:
            images: as for `predict`; the images of a folder are in the order of names, those of
                sub-folders last.
            batch_size: number of images to run at once. The last batch is padded.
        """
        running = None
        for batch in read_batches(images, self.preprocessing, batch_size):
            logits = self.logits(batch.images)
            if running is not None:  # fetched while the device computes the next batch
                yield from self._results(*running)
            running = batch, logits
        if running is not None:
            yield from self._results(*running)

    def top_classes(
        self, probabilities: Float32[np.ndarray, " classes"], top: int | None = None
    ) -> list[Prediction]:
        """Return the `top` most probable classes, by default all, most probable first."""
        order = np.argsort(-probabilities, kind="stable")[:top]
        return [Prediction(self.class_names[i], float(probabilities[i])) for i in order]

    def _results(
        self, batch: ReadBatch, logits: Float[Array, "batch outputs"]
    ) -> Iterator[ImageResult]:
        logits = np.asarray(logits)[: len(batch.names)]
        finite = np.isfinite(logits).all(axis=-1)
        rows = self._probabilities(np.where(finite[:, None], logits, 0))
        for name, row, error, sound in zip(batch.names, rows, batch.errors, finite, strict=True):
            if error is None and not sound:
                error = UserError(
                    f"{as_text(name)}: the model's outputs are not finite numbers; its parameters "
                    "are damaged, or its precision is too low"
                )
            yield ImageResult(name, row if error is None else None, error)

    def _probabilities(
        self, logits: Float[np.ndarray, "batch outputs"]
    ) -> Float32[np.ndarray, "batch classes"]:
        # In NumPy: JAX would compile a program for it.
        logits = logits.astype(np.float64)
        if self.activation == "softmax":
            shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
            return (shares / shares.sum(axis=-1, keepdims=True)).astype(np.float32)
        yes = 0.5 * (1 + np.tanh(0.5 * logits))  # sigmoid in a form that cannot overflow
        # A single output of two classes is the logit of the second.
        single = logits.shape[-1] == 1 and len(self.class_names) == 2
        yes = np.concatenate([1 - yes, yes], axis=-1) if single else yes
        return yes.astype(np.float32)

    def _program(self, shape: tuple[int, ...]) -> Callable[..., Float[Array, "batch classes"]]:
        if self._record is None:  # a module without a record on disk
            return self._compiled
        if shape not in self._programs:
            images = jax.ShapeDtypeStruct(shape, np.uint8)
            self._programs[shape] = self._kept_program(self.variables, images)
        return self._programs[shape]

    def _kept_program(self, variables: dict[str, Any], images: jax.ShapeDtypeStruct):
        record = self._record.to_json()
        parts = ("name", "fields", "preprocessing", "format")
        return program(
            {part: record[part] for part in parts},
            self._forward,
            (variables, images),
            # The code of a user's architecture may change without a new version.
            may_keep=lambda: type(self.model).__module__.startswith("vit_jax."),
        )

    @functools.cached_property
    def _programs(self) -> dict[tuple[int, ...], Callable]:
        return {}

    @functools.cached_property
    def _compiled(self):
        return jax.jit(self._forward())

    def _forward(self):
        def forward(variables, images):
            return self.model.apply(variables, self.preprocessing.normalize(images), train=False)

        return forward


def load_classifier(
    path: str | os.PathLike, checkpoint: int | str = "last", *, raw: bool = False
) -> Classifier:
    """Load the classifier of a run folder as `load` does.

    Raises:
        UserError: there is no such run or checkpoint, or its model has no classes.
    """
    record = RunDir(path).read_model()
    if record.class_names:
        return load(path, checkpoint, raw=raw)
    raise UserError(
        f"{path} is no classifier: it learned {record.task.replace('_', ' ')} "
        f"and has no classes; fine-tune it with --config.init_from={path}, or take its features "
        f"with vit_jax.load({str(path)!r}).features(images)"
    )


def load(
    path: str | os.PathLike, checkpoint: int | str = "last", *, raw: bool = False
) -> "Classifier | Encoder":
    """Load the classifier of a run folder: `load("runs/digits").predict("seven.png")`.

    The model of a run that learned without labels has no classes: it is returned as an `Encoder`,
    `load("runs/mae").features("seven.png")`.

    Args:
        path: a run folder, as written by training.
        checkpoint: "last", "best" (on validation data, if the run had any), or a step.
        raw: use the raw parameters of a run that also has their moving average.

    Raises:
        UserError: there is no such run or checkpoint.
    """
    run = RunDir(path)
    record = run.read_model()
    variables, step = run.read_variables(checkpoint, raw=raw)
    if not record.class_names:
        from vit_jax.inference.encoder import Encoder

        return Encoder.of_record(record.alone(), record.of_encoder(variables), step)
    return Classifier.of_record(record, variables, step)
