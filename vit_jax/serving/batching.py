"""Dynamic batching: images of several requests are computed in one batch.

A batch is computed as soon as the device is free and it is full, no further image is on its way, or
its first image has waited long enough. A single client never waits.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

Compute = Callable[[Sequence[Any]], Sequence[Any]]


class _Waiting(NamedTuple):
    item: Any
    result: asyncio.Future
    since: float


class Batcher:
    """Queue of items, and one thread that computes them in batches.

    Args:
        compute: returns the result of each item of a batch; runs in a thread of its own, one batch
            at a time.
        most: number of items of a batch.
        seconds: longest wait of an item for others.
        coming: returns the number of items that are on their way.
        observe: called with the number of items of each batch.
    """

    def __init__(
        self,
        compute: Compute,
        most: int,
        seconds: float,
        coming: Callable[[], int] = lambda: 0,
        observe: Callable[[int], None] = lambda size: None,
    ):
        self._compute, self._most, self._seconds = compute, most, seconds
        self._coming, self._observe = coming, observe
        self._queue: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="device")
        self._task: asyncio.Task | None = None

    def __len__(self) -> int:
        return len(self._queue)

    async def __aenter__(self) -> "Batcher":
        self._task = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *_: Any) -> None:
        """Stop; what waits by then is cancelled."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        for waiting in self._queue:
            waiting.result.cancel()
        self._thread.shutdown()

    async def submit(self, item: Any) -> Any:
        """Return the result of an item; raises what its computation raises."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(item, loop.create_future(), loop.time())
        self._queue.append(waiting)
        self._arrived.set()
        return await waiting.result

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function gives that needs the device; it waits for the present batch."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def _work(self) -> None:
        while True:
            batch = await self._next()
            batch = [waiting for waiting in batch if not waiting.result.done()]  # not cancelled
            if not batch:
                continue
            self._observe(len(batch))
            try:
                results = await self.call(self._compute, [waiting.item for waiting in batch])
            except Exception as error:  # whatever the device raises belongs to these requests
                results = [error] * len(batch)
            for waiting, result in zip(batch, results, strict=True):
                if waiting.result.done():
                    continue
                if isinstance(result, Exception):
                    waiting.result.set_exception(result)
                else:
                    waiting.result.set_result(result)

    async def _next(self) -> list[_Waiting]:
        """Wait for a batch, and take it from the queue."""
        queue, loop = self._queue, asyncio.get_running_loop()
        while not queue:
            await self._wait(None)
        deadline = queue[0].since + self._seconds
        while len(queue) < self._most and self._coming() and (left := deadline - loop.time()) > 0:
            await self._wait(left)
        return [queue.popleft() for _ in range(min(len(queue), self._most))]

    async def _wait(self, seconds: float | None) -> None:
        self._arrived.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._arrived.wait(), seconds)
