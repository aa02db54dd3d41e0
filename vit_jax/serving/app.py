"""Routes of the server, as an ASGI application.

POST /predict    results of one image or several
POST /attention  attention map of one image
GET  /           page for a browser
GET  /model      model card
GET  /health     {"status": "ready"}
GET  /metrics    counters, as Prometheus reads them
"""

import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from vit_jax import __version__
from vit_jax.errors import shown
from vit_jax.serving import metrics
from vit_jax.serving.limits import BAD_REQUEST, BUSY, BodyLimit, Message, Receive, Refused, Send
from vit_jax.serving.page import CONTENT_SECURITY_POLICY, PAGE
from vit_jax.serving.reading import read_uploads
from vit_jax.serving.service import Service
from vit_jax.text import to_json

_ROUTES = ("/", "/predict", "/attention", "/model", "/health", "/metrics")
_CLIENT_CLOSED = 499  # nobody reads it; nginx logs the same number
_SENTENCES = {
    404: "there is no such address; use POST /predict, or GET /, /model, /health or /metrics",
    405: "this address takes another method; use POST /predict, and GET for the others",
}
_LEGAL = {"top": "use a whole number from 1", "files": "use true or false"}
# What FastAPI cannot read from the signatures, which take any body.
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "image/*": {"schema": {"type": "string", "format": "binary"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "image": {
                            "type": "array",
                            "items": {"type": "string", "format": "binary"},
                        }
                    },
                }
            },
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "images": {
                            "type": "array",
                            "items": {"type": "string", "format": "byte"},
                        }
                    },
                }
            },
        },
    }
}

Top = Annotated[int, Query(ge=1, description="Number of classes of each image.")]
Files = Annotated[bool, Query(description="Whether to add the files of a dense model.")]


def create_app(service: Service) -> FastAPI:
    """Return the application of a started service.

    Every answer but the page and the metrics is JSON; one with another status than 200 has a
    sentence under `error`.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI):
        async with service.running():
            yield

    app = FastAPI(
        title="vit_jax",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
    )

    @app.post("/predict", openapi_extra=_BODY)
    async def predict(request: Request, top: Top = 3, files: Files = True) -> Response:
        """Return the results of one image or several."""
        with service.admitted():
            with service.announced(1):
                uploads = await read_uploads(request, service.limits)
            status, answer = await service.predict(uploads, top, files)
        return _json(answer, status)

    @app.post("/attention", openapi_extra=_BODY)
    async def attention(request: Request) -> Response:
        """Return the attention map of the last layer in one image."""
        with service.admitted():
            uploads = await read_uploads(request, service.limits)
            if len(uploads) > 1:
                raise Refused(BAD_REQUEST, "attention maps are made of one image at a time")
            return _json(await service.attention(uploads[0]))

    @app.get("/model")
    async def model() -> Response:
        """Return the model card."""
        return _json(service.card)

    @app.get("/health")
    async def health() -> Response:
        """Return that the server is ready."""
        return _json({"status": "ready"})

    @app.get("/metrics")
    async def counters() -> Response:
        """Return the metrics."""
        return Response(service.metrics_text(), headers={"content-type": metrics.CONTENT_TYPE})

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return Response(
            PAGE,
            media_type="text/html",
            headers={"content-security-policy": CONTENT_SECURITY_POLICY},
        )

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> Response:
        headers = {"retry-after": "1"} if error.status == BUSY else {}
        return _json({"error": str(error)}, error.status, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        name = first["loc"][-1]
        legal = _LEGAL.get(name, first["msg"].lower())
        return _json({"error": f"{name}={shown(first['input'])} is invalid; {legal}"}, BAD_REQUEST)

    @app.exception_handler(HTTPException)
    async def other(_: Request, error: HTTPException) -> Response:
        sentence = _SENTENCES.get(error.status_code, str(error.detail))
        return _json({"error": sentence}, error.status_code, error.headers)

    @app.exception_handler(ClientDisconnect)
    async def gone(*_: Any) -> Response:
        return Response(status_code=_CLIENT_CLOSED)

    @app.exception_handler(Exception)
    async def failed(*_: Any) -> Response:  # its traceback is in the server's log
        return _json({"error": "the server has failed at this request; its log says why"}, 500)

    app.add_middleware(BodyLimit, limits=service.limits)
    app.add_middleware(_Counting, service=service)
    return app


class _Counting:
    """ASGI middleware that counts requests by path and status."""

    def __init__(self, app: Callable[..., Awaitable[None]], service: Service):
        self._app = app
        self._service = service

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        start, status = time.perf_counter(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            path = scope["path"] if scope["path"] in _ROUTES else "other"
            seconds = time.perf_counter() - start
            self._service.metrics.count_request(path, status, seconds)


def _json(value: Any, status: int = 200, headers: Any = None) -> Response:
    """Return JSON; characters that change how text is shown are escaped in it."""
    return Response(
        to_json(value),
        status,
        media_type="application/json",
        headers={**(headers or {}), "x-content-type-options": "nosniff"},
    )
