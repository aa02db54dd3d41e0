"""Prefetching of batches in threads or worker processes of Grain.

This file adds to Grain what a long run needs:

- workers ignore the signals that stop a run: the run saves and closes them, and Ctrl-C, which the
  terminal sends to all processes, prints no traceback of a worker;
- workers end when their parent process has ended, even if it was killed;
- memory shared with workers is released at once, not in a thread that may not finish before the
  program ends: Python would report a leak;
- a worker that dies, with any exit code, is an error with a remedy.
"""

import itertools
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import resource_tracker
from typing import TypeVar

import grain
from absl import flags
from grain._src.python.dataset.transformations import process_prefetch
from grain.multiprocessing import SharedMemoryArray

from vit_jax.errors import UserError
from vit_jax.process_setup import cores

Item = TypeVar("Item")

MOST_AHEAD = 16  # prefetched items of each process
READ_AHEAD_BYTES = 2 * 2**30  # limit for all processes together
STOPPING_SIGNALS = {
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
}


def read_ahead(
    items: Sequence[Item], first: int, *, item_bytes: int, threads: int | None, workers: int
) -> Iterator[Item]:
    """Yield the items from `first` on in order, prefetched.

    Args:
      items: random access to the items; it is pickled for the workers.
      first: index of the first item.
      item_bytes: size of an item, which limits the number of prefetched items.
      threads: number of threads in each process; None: two per core over all processes together,
        but at most the number of prefetched items. More threads are slower: 16 on two cores made a
        sixth fewer images in the same processor time than 4.
      workers: number of worker processes; 0 computes in this process.

    Returns:
      An iterator whose `close()` ends threads and workers.

    Raises:
      UserError: while iterating, a worker dies. Errors of `items` are raised unchanged.
    """
    held = READ_AHEAD_BYTES // max(1, item_bytes * max(1, workers))
    held = min(max(2, held), MOST_AHEAD)
    dataset = grain.MapDataset.source(items)[first:].to_iter_dataset(
        grain.ReadOptions(threads or min(held, _threads(workers)), prefetch_buffer_size=held)
    )
    return _from_workers(dataset, workers) if workers else _from_threads(dataset)


def _threads(workers: int) -> int:
    """Return the number of threads of one process: some compute while others wait for a disk."""
    return max(1, 2 * cores() // max(1, workers))


def _from_threads(dataset: grain.IterDataset) -> Iterator[Item]:
    iterator = iter(dataset)
    try:
        yield from iterator
    finally:
        iterator.close()


def _from_workers(dataset: grain.IterDataset, workers: int) -> Iterator[Item]:
    # Grain's workers read absl flags, which are not parsed in a notebook or a test.
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    # Grain frees shared memory in a thread if fewer items than this limit wait: 0 disables it.
    SharedMemoryArray.enable_async_del()
    SharedMemoryArray._outstanding_del_requests = threading.Semaphore(0)
    process_prefetch.ProcessPrefetchDatasetIterator._process_failed = _has_ended
    options = grain.MultiprocessingOptions(num_workers=workers)
    iterator = iter(dataset.mp_prefetch(options, worker_init_fn=_begin))
    try:
        # Threads, and the processes that they start, inherit the blocked signals, and Grain starts
        # both at the first item.
        nothing = object()
        with ThreadPoolExecutor(1, initializer=_block_stopping_signals) as starter:
            item = starter.submit(next, iterator, nothing).result()
        if item is not nothing:
            yield from itertools.chain([item], iterator)
    except RuntimeError as error:
        died = re.search(r"terminated unexpectedly with exit code (-?\d+)", str(error))
        if not died:
            raise
        raise UserError(
            f"a worker process that loads images died with exit code {died[1]}"
            + _meaning(int(died[1]))
            + "; lower data.workers (0: threads of the main process)"
        ) from error
    finally:
        iterator.close()


def _has_ended(iterator: process_prefetch.ProcessPrefetchDatasetIterator) -> bool:
    """Return whether Grain's worker has ended without leaving a batch to wait for.

    Grain itself waits for ever for a worker that ended with exit code 0, for example a worker whose
    main script has no `__main__` guard and runs to its end a second time.
    """
    process = iterator._prefetch_process
    if process is None or process.exitcode is None or not iterator._buffer.empty():
        return False
    # A process that is killed while it holds a lock never releases it, and closing would wait for
    # it: these two objects have locks that both sides take.
    iterator._prefetch_should_stop = iterator._process_ctx.Event()
    iterator._set_state_request_count = iterator._process_ctx.Value("i", 0)
    return True


def _meaning(exit_code: int) -> str:
    if exit_code == -9:
        return ", because it was killed, most often by the system for lack of memory"
    if exit_code < 0:
        return ""
    reason = ", with the traceback printed above" if exit_code else ""
    return (
        f"{reason} (a script that uses workers must be a file with its code under"
        ' `if __name__ == "__main__":`)'
    )


def _block_stopping_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING_SIGNALS)
    # Python's process that tracks shared memory; starting it unblocks some signals here.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING_SIGNALS)


def _begin(worker: int, workers: int) -> None:
    """Initialise a worker process.

    It ignores the signals that were blocked at its start, or they would stay pending. It also ends
    when its parent has ended; otherwise it would wait for ever.
    """
    del worker, workers
    for number in STOPPING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def wait():
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
