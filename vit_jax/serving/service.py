"""Service: a request from its images to its answer, whatever the protocol."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from vit_jax.errors import DecodeError, UserError
from vit_jax.inference.predictor import Predictor
from vit_jax.serving.answers import attention_fields, result_fields, written_files
from vit_jax.serving.batching import Batcher
from vit_jax.serving.card import model_card
from vit_jax.serving.engine import Engine, Prepared
from vit_jax.serving.limits import BAD_REQUEST, BUSY, Limits, Refused
from vit_jax.serving.metrics import Metrics
from vit_jax.serving.reading import Upload

MOST_IN_BATCH = 16
WAIT_SECONDS = 0.005


class Service:
    """Trained model behind a server.

    Args:
        predictor: the model.
        about: `name`, `task`, `origin` and `versions` for the card, such as `record.to_json()`.
        limits: of requests.
        most_in_batch: images computed at once.
        wait_seconds: longest wait of an image for others of its batch.

    Raises:
        UserError: the model is one of clips.
    """

    def __init__(
        self,
        predictor: Predictor,
        about: Mapping[str, Any],
        limits: Limits | None = None,
        most_in_batch: int = MOST_IN_BATCH,
        wait_seconds: float = WAIT_SECONDS,
    ):
        if predictor.preprocessing.frames:
            raise UserError(
                "a model of clips cannot be served, since a request holds images; use "
                "vit_jax.load(RUN)(clips)"
            )
        self.predictor, self.limits = predictor, limits or Limits()
        self.engine = Engine(predictor, most_in_batch, self.limits.pixels)
        self.metrics = Metrics(self.engine.sizes)
        self.requests = 0
        self._about, self._seconds = about, wait_seconds
        self._coming = 0  # images that are being decoded, or not yet read
        # Images of a predictor that takes them whole would fill the memory while they wait.
        whole = None if self.engine.takes_inputs else asyncio.Semaphore(self.engine.sizes[-1])
        self._whole_images = whole or contextlib.nullcontext()
        self._batcher: Batcher | None = None
        self._decoders: ThreadPoolExecutor | None = None

    def start(self, show: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Compile all sizes of batches, and describe the model."""
        self.engine.warm_up(show)
        self.card = model_card(self.predictor, self._about, self.limits, self.engine.sizes)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Context in which images are computed."""
        most = self.engine.sizes[-1]
        threads = ThreadPoolExecutor(2 * (os.cpu_count() or 1), thread_name_prefix="decode")
        batcher = Batcher(
            *(self.engine.compute, most, self._seconds),
            coming=lambda: self._coming,
            observe=self.metrics.count_batch,
        )
        with threads:
            async with batcher:
                self._decoders, self._batcher = threads, batcher
                yield

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """Context of a request. Raises Refused if there are too many at once."""
        if self.requests >= self.limits.requests:
            raise Refused(
                BUSY, f"{self.requests} requests are waiting already; send this one again later"
            )
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1

    @contextlib.contextmanager
    def announced(self, images: int) -> Iterator[None]:
        """Context in which a number of images is on its way to a batch."""
        self._coming += images
        try:
            yield
        finally:
            self._coming -= images

    async def predict(
        self, uploads: Sequence[Upload], top: int, files: bool
    ) -> tuple[int, dict[str, Any]]:
        """Return the status and the answer of a request for the results of images.

        Args:
            uploads: the images.
            top: number of classes of each.
            files: whether to add the files that `predict --output` writes, if the model has some.
        """
        asked = [self._predict(upload, top, files) for upload in uploads]
        found = await asyncio.gather(*asked, return_exceptions=True)
        for failure in found:
            if isinstance(failure, BaseException) and not isinstance(failure, UserError):
                raise failure
        failures = [one for one in found if isinstance(one, UserError)]
        self.metrics.count_images(len(found) - len(failures), len(failures))
        rows = [
            {"image": upload.name, **({"error": str(one)} if isinstance(one, UserError) else one)}
            for upload, one in zip(uploads, found, strict=True)
        ]
        if not failures:
            return 200, {"images": rows}
        status = max(map(_status, failures))
        return status, {"error": str(failures[0]), "images": rows}

    async def attention(self, upload: Upload) -> dict[str, Any]:
        """Return the attention map of an image.

        Raises Refused for an image that cannot be read or a model without attention.
        """
        try:
            image = await self._in_thread(self.engine.decode, upload)
            found = await self._batcher.call(attention_fields, self.predictor, image)
        except UserError as error:
            raise Refused(getattr(error, "status", BAD_REQUEST), str(error)) from error
        return {"image": upload.name, **found}

    def metrics_text(self) -> str:
        """Return all metrics in the format of Prometheus."""
        return self.metrics.text(
            {
                "requests_in_progress": ("Requests in progress.", lambda: self.requests),
                "images_waiting": ("Images in the queue.", lambda: len(self._batcher or ())),
            }
        )

    async def _predict(self, upload: Upload, top: int, files: bool) -> dict[str, Any]:
        async with self._whole_images:
            with self.announced(1):
                prepared: Prepared = await self._in_thread(self.engine.prepare, upload)
            result = await self._batcher.submit(prepared)
            del prepared
        if not (files and self.predictor.files):
            return result_fields(self.predictor, result, top)
        return await self._in_thread(self._with_files, upload, result, top)

    def _with_files(self, upload: Upload, result: Any, top: int) -> dict[str, Any]:
        fields = result_fields(self.predictor, result, top)
        image = self.engine.decode(upload)  # again, so that none is held while it waits
        return {**fields, "files": written_files(self.predictor, result, image)}

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._decoders, function, *arguments)


def _status(error: UserError) -> int:
    """Return the status of an image's error: outputs that are not finite are the server's."""
    if isinstance(error, Refused):
        return error.status
    return BAD_REQUEST if isinstance(error, DecodeError) else 500
