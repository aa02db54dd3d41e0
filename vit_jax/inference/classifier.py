"""Trained classifier: a model with parameters, from images to labelled probabilities."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, UInt8

from vit_jax.data.images.decoding import ImageLike
from vit_jax.data.images.preprocess import Preprocessing
from vit_jax.data.paths import as_text
from vit_jax.errors import UserError
from vit_jax.inference.predictor import BATCH, BATCH_SIZE, ArraySpec, Outputs, Predictor
from vit_jax.inference.programs import program
from vit_jax.inference.streaming import ReadBatch
from vit_jax.runs import ModelRecord

if TYPE_CHECKING:  # a cached program runs without linen
    import flax.linen as nn


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


class Classifier(Predictor):
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
        super().__init__(model, {"params": params, **(model_state or {})}, preprocessing, step)
        self.class_names = tuple(class_names)
        self.activation = activation
        self._record: ModelRecord | None = None

    @classmethod
    def of_record(
        cls, record: ModelRecord, variables: Mapping[str, Any], step: int | None = None
    ) -> Self:
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
    def model_state(self) -> dict[str, Any]:
        """Variables besides the parameters."""
        return {name: tree for name, tree in self.variables.items() if name != "params"}

    @property
    def outputs(self) -> dict[str, ArraySpec]:
        """Logits, and the probabilities of the classes."""
        names, logits = self.class_names, self._traced("logits")
        [width], dtype = logits.shape[1:], logits.dtype.name
        labels = names if width == len(names) else ()
        found = {"logits": ArraySpec((BATCH, width), dtype, "outputs of the head", labels)}
        if names:
            kind = "they sum to 1" if self.activation == "softmax" else "independent of each other"
            meaning = f"probability of each class; {kind}"
            found["probabilities"] = ArraySpec((BATCH, len(names)), "float32", meaning, names)
        return found

    def function(self, variables, images) -> Outputs:
        """Return logits of preprocessed images, and probabilities if there are classes."""
        logits = self.model.apply(variables, self.preprocessing.normalize(images), train=False)
        found = {"logits": logits}
        if self.class_names:
            found["probabilities"] = self._to_probabilities(logits.astype("float32"), jnp)
        return found

    def logits(self, images: UInt8[np.ndarray, "batch h w c"]) -> Float[Array, "batch classes"]:
        """Return the logits of preprocessed images (the result of `preprocessing`, uint8).

        Raises UserError for images of another size or type than the result of `preprocessing`.
        """
        self.check(images)
        return self._program(images.shape)(self.variables, images)

    def __call__(
        self, images: ImageLike | Iterable[ImageLike], batch_size: int = BATCH_SIZE
    ) -> list[list[Prediction]]:
        """Return the probability of each class, most probable first; see `predict`."""
        return self.predict(images, batch_size=batch_size)

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
                channels)` is several images. Any iterable of these is read lazily. For a model of
                clips: folders of frames, arrays `(frames, height, width, channels)`, and `(batch,
                frames, height, width, channels)` for several.
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

        def run(images: UInt8[np.ndarray, "batch h w c"]) -> Outputs:
            return {"logits": self.logits(images)}  # by a program that is kept on disk

        for batch, outputs in self._batches(images, batch_size, run):
            yield from self._results(batch, outputs["logits"])

    def batch_results(self, batch: ReadBatch) -> list[Float32[np.ndarray, " classes"] | UserError]:
        """Return the probabilities of each image of a preprocessed batch.

        In place of an image whose outputs are not finite numbers is the error.
        """
        logits = np.asarray(self.logits(batch.images))[: len(batch.names)]
        return [
            result.probabilities if result.error is None else result.error
            for result in self._results(batch, logits)
        ]

    def to_json(self, result: Sequence[Prediction]) -> dict[str, Any]:
        """Return classes as values of JSON, under the name `classes`."""
        return {"classes": [guess._asdict() for guess in result]}

    def top_classes(
        self, probabilities: Float32[np.ndarray, " classes"], top: int | None = None
    ) -> list[Prediction]:
        """Return the `top` most probable classes, by default all, most probable first."""
        order = np.argsort(-probabilities, kind="stable")[:top]
        return [Prediction(self.class_names[i], float(probabilities[i])) for i in order]

    def _results(
        self, batch: ReadBatch, logits: Float[np.ndarray, "batch outputs"]
    ) -> Iterator[ImageResult]:
        finite = np.isfinite(logits).all(axis=-1)
        # In NumPy: JAX would compile a program for it.
        sound_logits = np.where(finite[:, None], logits, 0).astype(np.float64)
        rows = self._to_probabilities(sound_logits, np).astype(np.float32)
        for name, row, error, sound in zip(batch.names, rows, batch.errors, finite, strict=True):
            if error is None and not sound:
                error = UserError(
                    f"{as_text(name)}: the model's outputs are not finite numbers; its parameters "
                    "are damaged, or its precision is too low"
                )
            yield ImageResult(name, row if error is None else None, error)

    def _to_probabilities(self, logits: Any, of: ModuleType) -> Any:
        """Return probabilities `(batch, classes)` of logits `(batch, outputs)`.

        of: numpy or jax.numpy.
        """
        if self.activation == "softmax":
            shares = of.exp(logits - logits.max(axis=-1, keepdims=True))
            return shares / shares.sum(axis=-1, keepdims=True)
        yes = 0.5 * (1 + of.tanh(0.5 * logits))  # sigmoid in a form that cannot overflow
        # A single output of two classes is the logit of the second.
        single = logits.shape[-1] == 1 and len(self.class_names) == 2
        return of.concatenate([1 - yes, yes], axis=-1) if single else yes

    def _program(self, shape: tuple[int, ...]) -> Callable[..., Float[Array, "batch classes"]]:
        if self._record is None:  # a module without a record on disk
            return self._compiled
        if shape not in self._programs:
            images = jax.ShapeDtypeStruct(shape, np.uint8)
            self._programs[shape] = self._kept_program(self.variables, images)
        return self._programs[shape]

    def _kept_program(self, variables: dict[str, Any], images: jax.ShapeDtypeStruct):
        record = self._record.to_json()
        parts = ("name", "fields", "preprocessing", "format", "quantization")
        return program(
            {part: record.get(part) for part in parts},
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
        return lambda variables, images: self.function(variables, images)["logits"]
