"""Server process: its socket, its start, and a stop that answers what has arrived."""

import asyncio
import contextlib
import errno
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from vit_jax.errors import UserError
from vit_jax.serving.app import create_app
from vit_jax.serving.service import Service
from vit_jax.startup import stopping_signals

_DRAIN_SECONDS = 30
_ACCEPT_SECONDS = 0.2
_BACKLOG = 1024


def open_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket; clients that connect wait until the server has started.

    Args:
        host: name or address of this machine.
        port: 0 for any that is free.

    Raises:
        UserError: the port is in use or reserved, or the host is none of this machine.
    """
    where = f"--host={host} --port={port}"
    try:
        family, kind, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise UserError(
            f"--host={host} is no address: {getattr(error, 'strerror', None) or error}; use "
            "127.0.0.1, or 0.0.0.0 for all networks"
        ) from error
    listening = socket.socket(family, kind)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            why = "the port is in use; choose another, or --port=0 for any that is free"
        elif error.errno == errno.EACCES:
            why = "permission denied; choose a port above 1023"
        elif error.errno == errno.EADDRNOTAVAIL:
            why = "this machine does not have that address; use 127.0.0.1, or 0.0.0.0 for all"
        else:
            why = str(error.strerror)
        raise UserError(f"{where} cannot be opened: {why}") from error
    return listening


def address_of(listening: socket.socket) -> str:
    """Return the address for a browser."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_server(
    service: Service, listening: socket.socket, ready: Callable[[], None] = lambda: None
) -> None:
    """Serve until a signal arrives, then answer the requests that have arrived, and return.

    Args:
        service: started.
        listening: see `open_socket`; closed at the end.
        ready: called when requests are accepted.
    """
    config = uvicorn.Config(
        create_app(service),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
        timeout_keep_alive=30,
    )
    _Server(config, ready).run([listening])


class _Server(uvicorn.Server):
    """Uvicorn's server, which after a signal returns instead of raising the signal again."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]):
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Connections that the system has taken already are read first, and not reset.
        await asyncio.sleep(_ACCEPT_SECONDS)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.getsignal(number) for number in stopping_signals()}
        for number in before:
            signal.signal(number, self.handle_exit)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
