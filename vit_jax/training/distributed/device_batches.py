"""Prefetch of batches onto the devices."""

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
    """Yield the same batches on the devices, in order; a thread transfers the next one.

    Only one batch is ahead of the caller, so resuming is not affected: a run counts the batches
    that it has taken. An error is raised in place of the batch that caused it.

    Args:
        batches: this process's part of each; it has a `close()`.

    Returns:
        An iterator whose `close()` waits for the pending transfer and closes `batches`.
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
