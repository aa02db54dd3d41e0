"""Batches that are on the devices before the step asks for them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from vit_jax.training.distributed.sharding import to_devices


def on_devices(
    batches: Iterator[dict[str, np.ndarray]], mesh: Mesh
) -> Iterator[dict[str, jax.Array]]:
    """Yield the same batches on the devices, in their order; a thread puts the next one there.

    One batch is ahead of what the caller has, no more, so nothing of a run that resumes changes: it
    counts the batches that it has taken. An error comes in the place of the batch that it is about.

    Args:
        batches: this process's part of each; it has a `close()`.

    Returns:
        An iterator whose `close()` waits for the batch that is on its way and closes `batches`.
    """

    def put_next() -> dict[str, jax.Array] | None:
        batch: Any = next(batches, None)
        return None if batch is None else to_devices(batch, mesh)

    try:
        with ThreadPoolExecutor(1, thread_name_prefix="batches") as thread:
            ahead = thread.submit(put_next)
            while (batch := ahead.result()) is not None:
                ahead = thread.submit(put_next)
                yield batch
    finally:
        batches.close()
