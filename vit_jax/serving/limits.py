"""Limits of a server: bytes, pixels, images and requests at once."""

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from vit_jax.errors import UserError

Message = MutableMapping[str, Any]  # of ASGI
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

BAD_REQUEST, TIMEOUT, TOO_LARGE, WRONG_TYPE, BUSY = 400, 408, 413, 415, 503

_LINGER_SECONDS = 1.0  # for the rest of a body that is too large, so that its sender can read


@dataclass(frozen=True)
class Limits:
    """Limits of requests; a request above one is refused in a sentence.

    Attributes:
        body_bytes: size of a request's body.
        pixels: height times width of an image, known from its header before it is decoded.
        images: number of images in a request.
        requests: number of requests that are read, waiting or computed at once.
        seconds: time in which a body has to arrive.
    """

    body_bytes: int = 32 * 2**20
    pixels: int = 50_000_000
    images: int = 64
    requests: int = 64
    seconds: float = 30.0


class Refused(UserError):
    """Request that is answered with a status other than 200, and a sentence."""

    def __init__(self, status: int, sentence: str):
        super().__init__(sentence)
        self.status = status


class BodyLimit:
    """ASGI middleware that bounds size and time of a request's body.

    A body is refused as soon as its Content-Length, or what has arrived of it, is too large. The
    answer is sent at once; then the connection reads on for a moment before it is closed, since a
    client that is cut while sending would not see the answer.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], limits: Limits):
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = dict(scope["headers"])
        declared = headers.get(b"content-length", b"")
        too_large = declared.isdigit() and int(declared) > self._limits.body_bytes
        deadline = time.monotonic() + self._limits.seconds
        arrived, complete = 0, False

        async def bounded() -> Message:
            nonlocal arrived, complete
            if too_large:
                raise self._too_large()
            try:
                left = max(deadline - time.monotonic(), 0)
                message = await asyncio.wait_for(receive(), left)
            except TimeoutError:
                seconds = self._limits.seconds
                raise Refused(
                    TIMEOUT, f"the body of the request did not arrive in {seconds:g} seconds"
                ) from None
            complete = not message.get("more_body")
            arrived += len(message.get("body", b""))
            if arrived > self._limits.body_bytes:
                raise self._too_large()
            return message

        lingering = False

        async def closed_after(message: Message) -> None:
            nonlocal lingering
            starts = message["type"] == "http.response.start"
            if starts and message["status"] in (TIMEOUT, TOO_LARGE) and not complete:
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
                is_sending = headers.get(b"expect", b"").lower() != b"100-continue"
                lingering = message["status"] == TOO_LARGE and is_sending
            last = message["type"] == "http.response.body" and not message.get("more_body")
            if not (lingering and last):
                return await send(message)
            await send({**message, "more_body": True})
            await self._read_on(receive)
            await send({"type": "http.response.body", "body": b""})

        await self._app(scope, bounded, closed_after)

    def _too_large(self) -> Refused:
        most = self._limits.body_bytes / 2**20
        return Refused(
            TOO_LARGE,
            f"the request is larger than {most:g} MiB; send fewer or smaller images, or start the "
            "server with a larger --max-mb",
        )

    async def _read_on(self, receive: Receive) -> None:
        """Discard what arrives in a moment, at most as much as a body may have."""
        left = self._limits.body_bytes
        try:
            async with asyncio.timeout(_LINGER_SECONDS):
                while left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    if message["type"] == "http.disconnect" or not message.get("more_body"):
                        return
        except TimeoutError:
            return
