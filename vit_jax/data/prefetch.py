"""Batches computed ahead of the step that takes them, in threads or worker processes of Grain.

What Grain leaves open and a long run needs is settled here:

- workers do not see the signals that stop a run: the run saves and closes them, and Ctrl-C, which
  the terminal sends to all of them, prints no traceback of theirs;
- workers end when the process that started them is gone, even if it was killed;
- memory shared with workers is given back at once, not by a thread that the end of the program cuts
  short: Python would report it as leaked;
- a worker that dies, with whatever exit code, is an error with a remedy.
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

Item = TypeVar("Item")

MOST_AHEAD = 16  # items that each process reads ahead
READ_AHEAD_BYTES = 2 * 2**30  # of all processes together, where the items are large
STOPPING_SIGNALS = {
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
}


def read_ahead(
    items: Sequence[Item], first: int, *, item_bytes: int, threads: int | None, workers: int
) -> Iterator[Item]:
    """The items from `first` on, in their order, computed ahead.

    Args:
      items: random access to what is computed; it travels to workers by pickling.
      first: index of the first item wanted.
      item_bytes: size of an item, which bounds how many are held.
      threads: how many compute in each process; None is two for each core, of all processes
        together, and no more than there are items held. More of them get in each other's way: 16
        on two cores made a sixth fewer images in the same processor time than 4.
      workers: number of worker processes; 0 leaves the work to this one.

    Returns:
      An iterator whose `close()` ends threads and workers.

    Raises:
      UserError: while iterating, if a worker dies. Whatever `items` raises is raised as it is.
    """
    held = READ_AHEAD_BYTES // max(1, item_bytes * max(1, workers))
    held = min(max(2, held), MOST_AHEAD)
    dataset = grain.MapDataset.source(items)[first:].to_iter_dataset(
        grain.ReadOptions(threads or min(held, _threads(workers)), prefetch_buffer_size=held)
    )
    return _from_workers(dataset, workers) if workers else _from_threads(dataset)


def _threads(workers: int) -> int:
    """Threads of one process: while one waits for a disk, another computes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, 2 * (cores or 1) // max(1, workers))


def _from_threads(dataset: grain.IterDataset) -> Iterator[Item]:
    iterator = iter(dataset)
    try:
        yield from iterator
    finally:
        iterator.close()


def _from_workers(dataset: grain.IterDataset, workers: int) -> Iterator[Item]:
    # Grain's workers read absl flags, which nobody has parsed in a notebook or a test.
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    # Grain gives shared memory back in its thread while fewer than so many wait for it: none here.
    SharedMemoryArray.enable_async_del()
    SharedMemoryArray._outstanding_del_requests = threading.Semaphore(0)
    process_prefetch.ProcessPrefetchDatasetIterator._process_failed = _has_ended
    options = grain.MultiprocessingOptions(num_workers=workers)
    iterator = iter(dataset.mp_prefetch(options, worker_init_fn=_begin))
    try:
        # Which signals are blocked is inherited, by threads and then by the processes they start,
        # and Grain starts both when the first item is asked for.
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

    Grain itself waits for ever for a worker that ended with exit code 0, as one does whose main
    script has no guard and comes to its end a second time.
    """
    process = iterator._prefetch_process
    if process is None or process.exitcode is None or not iterator._buffer.empty():
        return False
    # A process that is killed while it holds a lock never gives it back, and closing would wait for
    # it: these two have locks that both sides take.
    iterator._prefetch_should_stop = iterator._process_ctx.Event()
    iterator._set_state_request_count = iterator._process_ctx.Value("i", 0)
    return True


def _meaning(exit_code: int) -> str:
    if exit_code == -9:
        return ", killed from outside, most often by the system for want of memory"
    if exit_code < 0:
        return ""
    reason = ", for the reason that stands above" if exit_code else ""
    return (
        f"{reason} (a script that uses workers must be a file and keep what it does under"
        ' `if __name__ == "__main__":`)'
    )


def _block_stopping_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING_SIGNALS)
    # Python's own process that looks after shared memory; starting it unblocks some of them here.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING_SIGNALS)


def _begin(worker: int, workers: int) -> None:
    """Initialise a worker process.

    It ignores the signals that it was started with blocked, or they would wait for it. And it ends
    when its parent is gone; else it would wait for ever.
    """
    del worker, workers
    for number in STOPPING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def wait():
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
