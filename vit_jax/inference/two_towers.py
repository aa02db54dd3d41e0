"""Two towers: a trained model of images and texts, whose vectors are compared.

    towers = load("runs/clip")
    towers.encode_image(["cat.png", "dog.png"])             # float32 (2, width), of length 1
    towers.encode_text(["a photo of a cat"])                # float32 (1, width), of length 1
    towers.classify(["cat.png"], ["cat", "dog"])            # labelled probabilities
    towers.classifier(["cat", "dog"]).predict("cat.png")    # the same, for many images

Sources: Radford et al. 2021 (CLIP), section 3.1; Zhai et al. 2023 (SigLIP).
"""

import functools
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import jax
import numpy as np
from jaxtyping import Array, Float, Float32

from vit_jax.data.images.decoding import ImageLike
from vit_jax.data.images.preprocess import Preprocessing
from vit_jax.data.text.templates import TEMPLATES, check_templates, fill
from vit_jax.errors import UserError, shown
from vit_jax.inference.classifier import Classifier, Prediction
from vit_jax.inference.predictor import BATCH, ArraySpec, Predictor
from vit_jax.models.text.zero_shot import ZeroShotModel
from vit_jax.runs import ModelRecord, RunDir
from vit_jax.runs.record import part_of
from vit_jax.runs.tokenizer import read_tokenizer
from vit_jax.tasks.contrastive.task import Contrastive
from vit_jax.text import counted

if TYPE_CHECKING:
    from vit_jax.data.text import Tokenizer

BATCH_SIZE = 32
TEXTS_AT_ONCE = 128
MOST_BYTES = 2**32  # of the vectors of classes and the logits of a batch


class TwoTowers(Predictor):
    """Model of images and texts: `load("runs/clip").classify("cat.png", ["cat", "dog"])`.

    task: `Contrastive`, which has the modules. tokenizer: of its texts; None: texts cannot be read.
    """

    needs_modules: ClassVar[bool] = True
    usage: ClassVar[str] = "compare with texts: vit_jax.load({path!r}).classify(images, names)"

    def __init__(
        self,
        task: Contrastive,
        variables: Mapping[str, Any],
        preprocessing: Preprocessing,
        step: int | None = None,
        tokenizer: "Tokenizer | None" = None,
    ):
        super().__init__(task.model, variables, preprocessing, step)
        self.task = task
        self._encoder = task.encoder
        self._tokenizer = tokenizer
        if tokenizer is not None:
            tokenizer.check_tower(task.text)

    @classmethod
    def of_record(
        cls, record: ModelRecord, variables: Mapping[str, Any], step: int | None = None
    ) -> Self:
        """Return the model of a record, without a tokenizer.

        variables: of both towers, put on the device here.
        """
        text = variables["params"]["text"]
        sizes = {
            "vocabulary": len(text["token_embed"]),
            "length": text["pos_embed"].shape[1],
        }
        task = Contrastive(record.create_model(), **{**record.options, **sizes})
        return cls(task, jax.device_put(dict(variables)), record.preprocessing, step)

    @classmethod
    def of_run(
        cls, run: RunDir, record: ModelRecord, variables: Mapping[str, Any], step: int
    ) -> Self:
        """Return the model of a run, with the tokenizer in its folder."""
        found = cls.of_record(record, variables, step)
        tokenizer = read_tokenizer(run)
        if tokenizer is not None:
            found.tokenizer = tokenizer
        return found

    # ------------------------------------------------------------------------------- description

    @property
    def tokenizer(self) -> "Tokenizer":
        """Tokenizer of the texts. Raises UserError if there is none."""
        if self._tokenizer is None:
            raise UserError(
                "this model came without its tokenizer, so it reads no texts; set "
                "`.tokenizer = load_tokenizer(PATH)` of vit_jax.data.text, or pass --tokenizer="
            )
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: "Tokenizer") -> None:
        if tokenizer.length > self.task.length:
            tokenizer = tokenizer.with_length(self.task.length)
        tokenizer.check_tower(self.task.text)
        self._tokenizer = tokenizer

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return self.task.embed_width

    @property
    def outputs(self) -> dict[str, ArraySpec]:
        """The vectors of images."""
        meaning = "vector of each image, of length 1"
        return {"vectors": ArraySpec((BATCH, self.width), "float32", meaning)}

    # --------------------------------------------------------------------------------------- use

    def function(self, variables, images) -> dict[str, Float[Array, "batch width"]]:
        """Return the vectors of preprocessed images."""
        images = self.preprocessing.normalize(images)
        return {"vectors": self.task.image_vectors(variables, images)[0]}

    def result(self, outputs: dict[str, np.ndarray]) -> Float32[np.ndarray, " width"]:
        """Return the vector of one image."""
        return outputs["vectors"]

    def to_json(self, result: Float32[np.ndarray, " width"]) -> dict[str, Any]:
        """Return a vector as values of JSON, under the name `vector`."""
        return {"vector": result.tolist()}

    def encode_image(
        self, images: ImageLike | Iterable[ImageLike], batch_size: int = BATCH_SIZE
    ) -> Float32[np.ndarray, "images width"]:
        """Return the vector of each image, of length 1, in order.

        Args:
            images: as for `Classifier.predict`: files, folders, arrays, Pillow images, or an
                iterable of them.
            batch_size: number of images to run at once.

        Raises:
            UserError: an image cannot be read; the message has its name.
        """
        rows = self(images, batch_size)
        return np.stack(rows) if rows else np.zeros((0, self.width), np.float32)

    def encode_text(self, texts: str | Sequence[str]) -> Float32[np.ndarray, "texts width"]:
        """Return the vector of each text, of length 1, in order; one text alone is one row.

        Texts that are too long lose their last tokens; `tokenizer.cut_report()` counts them.

        Raises:
            UserError: there is no tokenizer, or a text is empty or none.
        """
        ids = self.tokenizer.encode(texts)
        found = np.zeros((len(ids), self.width), np.float32)
        for start in range(0, len(ids), TEXTS_AT_ONCE):
            part = ids[start : start + TEXTS_AT_ONCE]
            rows = min(TEXTS_AT_ONCE, 1 << (len(ids) - 1).bit_length())  # few texts, few rows
            padded = np.pad(part, ((0, rows - len(part)), (0, 0)))
            found[start : start + len(part)] = self._text_vectors(self.variables, padded)[
                : len(part)
            ]
        return found

    def compare(
        self, images: ImageLike | Iterable[ImageLike], texts: str | Sequence[str]
    ) -> Float32[np.ndarray, "images texts"]:
        """Return the cosine of each image with each text."""
        return self.encode_image(images) @ self.encode_text(texts).T

    def class_vectors(
        self, names: Sequence[str], templates: Sequence[str] = TEMPLATES
    ) -> Float32[np.ndarray, "classes width"]:
        """Return for each class the direction of the mean vector of its sentences.

        Raises:
            UserError: there are no classes, one twice or empty, too many for the memory, or a
                template has no place for a class.
        """
        names, templates = list(names), check_templates(templates)
        _check_names(names)
        if 4 * len(names) * (self.width + 2 * BATCH_SIZE) > MOST_BYTES:
            raise UserError(
                f"{len(names):,} classes are too many: their vectors of {self.width} numbers and "
                f"the logits of a batch need more than {MOST_BYTES / 2**30:.0f} GiB; give fewer, "
                "or search with `encode_text` in parts"
            )
        found = np.zeros((len(names), self.width), np.float32)
        at_once = max(1, 8 * TEXTS_AT_ONCE // len(templates))
        for start in range(0, len(names), at_once):
            part = names[start : start + at_once]
            texts = [text for name in part for text in fill(templates, name)]
            vectors = self.encode_text(texts).reshape(len(part), len(templates), -1).mean(1)
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            found[start : start + len(part)] = vectors / np.maximum(lengths, 1e-8)
        return found

    def classifier(self, names: Sequence[str], templates: Sequence[str] = TEMPLATES) -> Classifier:
        """Return a classifier of named classes, each described by sentences with its name.

        Its probabilities are those of the model's own scale: a softmax over the classes for CLIP,
        and one of its own for each class for SigLIP.

        Args:
            names: of the classes.
            templates: sentences with `{}` in the place of a class; `("{}",)` for the bare names.

        Raises:
            UserError: as for `class_vectors`.
        """
        vectors = self.class_vectors(names, templates)
        variables, learned = self.variables, self.variables["params"]["logits"]
        of_image = dict(part_of(variables, self._encoder))
        params = {
            "image": of_image.pop("params"),
            "texts": jax.device_put(vectors),
            "scale": learned["scale"].reshape(()),
            "bias": learned.get("bias", np.zeros((), np.float32)).reshape(()),
        }
        if self.task.image_projection:
            params["projection"] = variables["params"]["projection"]
        state = {name: {"image": tree} for name, tree in of_image.items()}
        module = ZeroShotModel(
            self.task.model.clone(parent=None),
            len(vectors),
            self.width,
            project=self.task.image_projection,
        )
        activation = "softmax" if self.task.kind == "softmax" else "sigmoid"
        return Classifier(
            module, params, tuple(names), self.preprocessing, state, self.step, activation
        )

    def classify(
        self,
        images: ImageLike | Iterable[ImageLike],
        names: Sequence[str],
        templates: Sequence[str] = TEMPLATES,
        top: int | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> list[list[Prediction]]:
        """Return the most probable of named classes for each image; see `classifier`."""
        return self.classifier(names, templates).predict(images, top, batch_size)

    @functools.cached_property
    def _text_vectors(self):
        return jax.jit(self.task.text_vectors)


def _check_names(names: list[str]) -> None:
    """Raise UserError for no classes, or one that is empty, twice, or no text."""
    if not names:
        raise UserError("there are no classes; give at least one name")
    wrong = [name for name in names if not isinstance(name, str) or not name.strip()]
    if wrong:
        raise UserError(
            f"{len(wrong):,} of {counted(len(names), 'class', 'classes')} have no name; the first "
            f"is {shown(wrong[0])}"
        )
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        are = "class is" if len(twice) == 1 else "classes are"
        raise UserError(f"{len(twice):,} {are} given twice, such as {shown(twice[0])}")


def load_two_towers(
    source: str | os.PathLike,
    tokenizer: str = "",
    checkpoint: int | str = "last",
    *,
    raw: bool = False,
) -> TwoTowers:
    """Load a model of images and texts: a run folder, a file or an address.

    Args:
        source: a run folder of the task `contrastive`, or what `read_two_towers` takes.
        tokenizer: a path or address of its tokenizer; empty: the one in the run folder or beside
            the file.
        checkpoint, raw: of a run, as for `load`.

    Raises:
        UserError: there is no such model, or the tokenizer is not that of its weights.
    """
    from vit_jax.inference.loading import load, predictor_class

    run = RunDir(source)
    if run.is_run():
        record = run.read_model()
        if not issubclass(predictor_class(record), TwoTowers):
            raise UserError(
                f"{source} has no text tower: it learned {record.task.replace('_', ' ')}; "
                "use a run of the task 'contrastive', or a file of CLIP or SigLIP"
            )
        found = load(source, checkpoint, raw=raw)
    else:
        found = _of_file(source, with_tokenizer=not tokenizer)
    if tokenizer:
        from vit_jax.weights.remote.tokenizer import fetch_tokenizer

        found.tokenizer = fetch_tokenizer(tokenizer)
    return found


def _of_file(source: str | os.PathLike, *, with_tokenizer: bool) -> TwoTowers:
    from vit_jax.weights.of_tasks.two_towers import read_two_towers
    from vit_jax.weights.remote.tokenizer import find_tokenizer

    weights = read_two_towers(source)
    found = TwoTowers.of_record(weights.record, weights.variables)
    if with_tokenizer and (tokenizer := find_tokenizer(source)) is not None:
        found.tokenizer = tokenizer
    return found
