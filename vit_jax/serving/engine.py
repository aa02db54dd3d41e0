"""Engine of a server: from files of images to results, in batches of compiled sizes."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from vit_jax.errors import DecodeError, UserError
from vit_jax.inference.classifier import Classifier
from vit_jax.inference.predictor import Predictor
from vit_jax.inference.streaming import ReadBatch
from vit_jax.serving.limits import TOO_LARGE, Refused
from vit_jax.serving.reading import Upload

# Formats that Pillow decodes itself: for EPS it would run another program.
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "HEIF", "JPEG2000")


@dataclass(frozen=True, eq=False)
class Prepared:
    """Image that is ready for a batch.

    pixels: the model's input; of a predictor that cuts or resizes images itself, the whole image.
    size: (height, width) in its file.
    """

    name: str
    pixels: UInt8[np.ndarray, "h w c"]
    size: tuple[int, int]


class Engine:
    """Trained model that computes batches of 1, 2, 4, ... images.

    Args:
        predictor: the model. One that overrides the call of `Predictor`, such as a segmenter with
            its windows, is called with whole images.
        most: number of images of a batch, rounded up to a power of two.
        pixels: most pixels of an image.

    Attributes:
        sizes: of batches.
        takes_inputs: whether batches are made of the model's inputs, not of whole images.
    """

    def __init__(self, predictor: Predictor, most: int, pixels: int):
        self.predictor = predictor
        self.sizes = tuple(1 << power for power in range((most - 1).bit_length() + 1))
        self._pixels = pixels
        own_call = type(predictor).__call__
        self.takes_inputs = own_call in (Predictor.__call__, Classifier.__call__)

    def decode(self, upload: Upload) -> UInt8[np.ndarray, "h w c"]:
        """Return the pixels of an image.

        Raises DecodeError for a file that is damaged, Refused for one of too many pixels.
        """
        try:
            with Image.open(io.BytesIO(upload.content)) as image:  # reads only the header
                pixels, kind = image.width * image.height, image.format
        except Image.DecompressionBombError:
            raise self._too_large(upload.name) from None
        except Exception:  # Pillow raises many types; decoding below finds the sentence
            pixels, kind = 0, None
        if pixels > self._pixels:
            raise self._too_large(upload.name)
        if kind not in (None, *FORMATS):
            formats = ", ".join(FORMATS)
            raise DecodeError(upload.name, f"its format {kind} is not accepted; use {formats}")
        return self.predictor.preprocessing.decode(upload.content, name=upload.name)

    def prepare(self, upload: Upload) -> Prepared:
        """Return an image ready for a batch; raises as `decode`."""
        pixels = self.decode(upload)
        size = pixels.shape[:2]
        return Prepared(upload.name, self._input(pixels), size)

    def compute(self, batch: Sequence[Prepared]) -> list[Any]:
        """Return the result of each image of a batch, or its error.

        The result of a classifier is the probability of every class; that of another predictor is
        what its call returns.
        """
        if not self.takes_inputs:
            return self._of_images(batch)
        size = next(size for size in self.sizes if size >= len(batch))
        images = np.zeros((size, *batch[0].pixels.shape), np.uint8)
        for place, one in enumerate(batch):
            images[place] = one.pixels
        names, sizes = [one.name for one in batch], [one.size for one in batch]
        return self.predictor.batch_results(ReadBatch(names, images, [None] * len(names), sizes))

    def warm_up(self, show: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Compile all sizes of batches.

        show: called with the numbers of sizes that are done, and of all.
        """
        blank = self.predictor.preprocessing.blank()
        one = Prepared("a blank image", self._input(blank), blank.shape[:2])
        for done, size in enumerate(self.sizes):
            show(done, len(self.sizes))
            self.compute([one] * size)
        show(len(self.sizes), len(self.sizes))

    def _input(self, pixels: UInt8[np.ndarray, "h w c"]) -> UInt8[np.ndarray, "h w c"]:
        return self.predictor.preprocessing(pixels) if self.takes_inputs else pixels

    def _of_images(self, batch: Sequence[Prepared]) -> list[Any]:
        images = [one.pixels for one in batch]
        try:
            return list(self.predictor(images, batch_size=self.sizes[-1]))
        except UserError as error:
            if len(batch) == 1:
                return [error]
        return [result for one in batch for result in self._of_images([one])]

    def _too_large(self, name: str) -> Refused:
        return Refused(
            TOO_LARGE,
            f"the image {name} has more than {self._pixels:,} pixels; send a smaller one, or start "
            "the server with a larger --max-megapixels",
        )
