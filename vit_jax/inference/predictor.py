"""Predictor: a trained model ready for use, one described function from images to named outputs.

    class Brightness(Predictor):
        @property
        def outputs(self):
            return {"brightness": ArraySpec((BATCH,), "float32", "mean of the pixels")}

        def function(self, variables, images):
            images = self.preprocessing.normalize(images)
            return {"brightness": self.model.apply(variables, images, train=False)[:, 0]}

    predictor = Brightness.of_record(record, variables)
    predictor(["one.png", "two.png"])                   # [{"brightness": ...}, {...}]

`vit_jax.load` returns the predictor that the task of a run names, otherwise a `Classifier` or an
`Encoder`.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import jax
import numpy as np
from jaxtyping import Array, UInt8

from vit_jax.data.images.decoding import ImageLike
from vit_jax.data.images.preprocess import Preprocessing
from vit_jax.errors import UserError
from vit_jax.inference.streaming import ReadBatch, read_batches
from vit_jax.runs import ModelRecord, RunDir

if TYPE_CHECKING:  # a cached program runs without linen
    import flax.linen as nn

BATCH_SIZE = 64
BATCH = "batch"
"""The number of images in the shape of an `ArraySpec`, which is any."""

Outputs = dict[str, Array]


@dataclass(frozen=True)
class ArraySpec:
    """Description of an array that the function of a predictor takes or returns.

    shape: with `BATCH` in place of the number of images. dtype: its name in NumPy. meaning: a
    phrase. labels: names along the last axis; empty: it has none.
    """

    shape: tuple[int | str, ...]
    dtype: str
    meaning: str
    labels: tuple[str, ...] = ()

    def of_batch(self, images: Any) -> jax.ShapeDtypeStruct:
        """Return shape and type for a number of images, which may be a symbolic dimension."""
        shape = tuple(images if size == BATCH else size for size in self.shape)
        return jax.ShapeDtypeStruct(shape, np.dtype(self.dtype))


class Predictor:
    """Trained model that is ready for use. A subclass has `outputs`, `function` and `result`.

    model: the linen module. variables: the first argument of `function`, on the device.
    preprocessing: of images to inputs. step: of the parameters' checkpoint, if known.
    class_names: in the order of the outputs, where these are classes.
    usage: a sentence on its use, for messages about what it is not.
    files: what `write` makes of the result of an image; empty: it has no files.
    needs_modules: whether it needs the other modules of its task, such as a text tower. A record of
        the model alone is then opened as that of any model.
    """

    class_names: tuple[str, ...] = ()
    files: ClassVar[str] = ""
    needs_modules: ClassVar[bool] = False
    usage: ClassVar[str] = "use what it gives with vit_jax.load({path!r})(images)"

    def __init__(
        self,
        model: "nn.Module",
        variables: Mapping[str, Any],
        preprocessing: Preprocessing,
        step: int | None = None,
    ):
        self.model = model
        self.variables = variables
        self.preprocessing = preprocessing
        self.step = step

    @classmethod
    def of_record(
        cls, record: ModelRecord, variables: Mapping[str, Any], step: int | None = None
    ) -> Self:
        """Return the predictor of a run.

        record: of its model. variables: of all modules of its task, put on the device here.
        """
        return cls(record.create_model(), jax.device_put(variables), record.preprocessing, step)

    @classmethod
    def of_run(
        cls, run: RunDir, record: ModelRecord, variables: Mapping[str, Any], step: int
    ) -> Self:
        """Return the predictor of a run; by default what `of_record` gives.

        run: its folder, for what is in no record, such as a tokenizer.
        """
        del run
        return cls.of_record(record, variables, step)

    # ------------------------------------------------------------------------------- description

    @property
    def inputs(self) -> dict[str, ArraySpec]:
        """Inputs of the function besides the variables, by name: always `images`."""
        channels = self.preprocessing.channels
        order = {1: "grey", 3: "RGB"}.get(channels, f"{channels} channels, as in training")
        meaning = f"pixels from 0 to 255 ({order}), as `preprocessing` returns them"
        return {"images": ArraySpec((BATCH, *self.preprocessing.shape), "uint8", meaning)}

    @property
    def outputs(self) -> dict[str, ArraySpec]:
        """Outputs of the function by name."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Return inputs, outputs and preprocessing as values of JSON."""
        arrays = {"inputs": self.inputs, "outputs": self.outputs}
        specs = {
            kind: {name: dataclasses.asdict(spec) for name, spec in of_kind.items()}
            for kind, of_kind in arrays.items()
        }
        return {**specs, "preprocessing": self.preprocessing.to_dict()}

    # --------------------------------------------------------------------------------------- use

    def function(
        self, variables: Mapping[str, Any], images: UInt8[Array, "batch h w c"]
    ) -> Outputs:
        """Return the outputs of preprocessed images: a pure function that normalises them too."""
        raise NotImplementedError

    def result(self, outputs: dict[str, np.ndarray]) -> Any:
        """Return the result of one image from its outputs, on the host; these by default."""
        return outputs

    def sized_result(self, outputs: dict[str, np.ndarray], size: tuple[int, int]) -> Any:
        """Return the result of an image of a (height, width) in pixels, by default `result`."""
        del size
        return self.result(outputs)

    def to_json(self, result: Any) -> dict[str, Any]:
        """Return a result as values of JSON by name; by default its arrays as lists."""
        return result_to_json(result)

    def write(
        self, folder: str | Path, stem: str, result: Any, image: UInt8[np.ndarray, "h w c"]
    ) -> list[Path]:
        """Write the files of a result into a folder that exists, and return their paths.

        Args:
            stem: what their names begin with.
            result: of one image, as a call returns it.
            image: as it is in its file.
        """
        raise NotImplementedError

    def __call__(
        self, images: ImageLike | Iterable[ImageLike], batch_size: int = BATCH_SIZE
    ) -> list[Any]:
        """Return the result of each image, in order.

        Args:
            images: file names, folders, bytes of image files, uint8 arrays `(height, width,
                channels)` or Pillow images, of any size; an array `(batch, height, width,
                channels)` is several images. Any iterable of these is read lazily. For a model of
                clips: folders of frames, arrays `(frames, height, width, channels)`, and `(batch,
                frames, height, width, channels)` for several.
            batch_size: number of images to run at once.

        Raises:
            UserError: an image cannot be read; the message has its name.
        """
        return [self.sized_result(*row) for row in self.rows(images, batch_size)]

    def rows(
        self, images: ImageLike | Iterable[ImageLike], batch_size: int = BATCH_SIZE
    ) -> Iterator[tuple[dict[str, np.ndarray], tuple[int, int]]]:
        """Yield the outputs of each image, and its (height, width) in pixels in its file.

        Raises:
            UserError: an image cannot be read; the message has its name.
        """
        for batch, outputs in self.batches(images, batch_size):
            for error in filter(None, batch.errors):
                raise error
            for i, size in enumerate(batch.sizes):
                yield {name: row[i] for name, row in outputs.items()}, size

    def batches(
        self, images: ImageLike | Iterable[ImageLike], batch_size: int = BATCH_SIZE
    ) -> Iterator[tuple[ReadBatch, dict[str, np.ndarray]]]:
        """Yield batches of any number of images with their outputs, without those of padding.

        Threads decode images while the model runs, and only a few batches are in memory. The
        outputs of an unreadable image, which `ReadBatch.errors` names, are those of a black one.
        """
        yield from self._batches(images, batch_size, self.run)

    def _batches(
        self,
        images: ImageLike | Iterable[ImageLike],
        batch_size: int,
        run: Callable[[UInt8[np.ndarray, "batch h w c"]], Outputs],
    ) -> Iterator[tuple[ReadBatch, dict[str, np.ndarray]]]:
        running = None
        for batch in read_batches(images, self.preprocessing, batch_size):
            outputs = run(batch.images)
            if running is not None:  # fetched while the device computes the next batch
                yield _fetched(*running)
            running = batch, outputs
        if running is not None:
            yield _fetched(*running)

    def batch_results(self, batch: ReadBatch) -> list[Any]:
        """Return the result of each image of a preprocessed batch, without those of padding."""
        _, outputs = _fetched(batch, self.run(batch.images))
        return [
            self.sized_result({name: rows[i] for name, rows in outputs.items()}, size)
            for i, size in enumerate(batch.sizes)
        ]

    def run(self, images: UInt8[np.ndarray, "batch h w c"]) -> Outputs:
        """Return the outputs of preprocessed images, on the device.

        Raises UserError for images of another size or type than the result of `preprocessing`.
        """
        self.check(images)
        return self._compiled_function(self.variables, images)

    def check(self, images: np.ndarray) -> None:
        """Raise UserError for a batch of another size or type than the input."""
        expected = self.inputs["images"].shape[1:]
        if images.shape[1:] != expected or images.dtype != np.uint8:
            raise UserError(
                f"images of type {images.dtype} and shape {images.shape} are not preprocessed; "
                f"they must be uint8 of shape (batch, {', '.join(map(str, expected))}): "
                "use np.stack on preprocessing(image) of each, or call the predictor itself, "
                "which takes any size"
            )

    @property
    def params(self) -> Any:
        """Parameters among the variables."""
        return self.variables["params"]

    @functools.cached_property
    def _compiled_function(self):
        return jax.jit(self.function)

    def _traced(self, name: str) -> jax.ShapeDtypeStruct:
        """Return shape and type of an output for one image, computing nothing."""
        image = self.inputs["images"].of_batch(1)
        return jax.eval_shape(self.function, self.variables, image)[name]


def result_to_json(result: Any) -> dict[str, Any]:
    """Return a result as values of JSON; one without names is called `result`."""
    value = _json_value(result)
    return value if isinstance(value, dict) else {"result": value}


def _json_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _json_value(one) for name, one in value.items()}
    if hasattr(value, "_asdict"):  # a named tuple
        return _json_value(value._asdict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: _json_value(getattr(value, field.name)) for field in fields}
    if isinstance(value, list | tuple):
        return [_json_value(one) for one in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return np.asarray(value).tolist()
    return value if isinstance(value, str | bool | int | float | None) else str(value)


def _fetched(batch: ReadBatch, outputs: Outputs) -> tuple[ReadBatch, dict[str, np.ndarray]]:
    count = len(batch.names)
    return batch, {name: np.asarray(rows)[:count] for name, rows in outputs.items()}
