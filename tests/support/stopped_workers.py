"""A program with two workers to which the signals of the test happen; not collected by pytest.

python -m tests.support.stopped_workers stop     signals to the whole group, then a killed worker
python -m tests.support.stopped_workers orphan   prints the workers and is killed itself
python -m tests.support.stopped_workers leave    ends with the batches open
python -m tests.support.stopped_workers locked   workers that hold their locks are killed
"""

import gc
import multiprocessing
import os
import signal
import sys
import time

import numpy as np
from grain._src.python.dataset.transformations.process_prefetch import (
    ProcessPrefetchDatasetIterator,
)

from vit_jax.data import Augment, Preprocessing, Source, train_batches
from vit_jax.errors import UserError


class Grey:
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return {"image": np.full((4, 4, 1), index, np.uint8), "label": index}


def batches():
    source = Source("grey", "train", tuple(map(str, range(100))), "grey", False, Grey())
    return train_batches(
        source,
        Preprocessing((8, 8), channels=1),
        Augment(),
        batch_size=10,
        seed=0,
        start_step=0,
        total_steps=10**6,
        workers=2,
    )


def ends_soon(stream):
    """What the batches end with, and whether they do so at once."""
    start = time.monotonic()
    try:
        while True:
            next(stream)
    except UserError as error:
        return f"{error}\n{'soon' if time.monotonic() - start < 20 else 'late'}"


def main(what):
    stream = batches()
    for _ in range(4):
        batch = next(stream)
    if what == "orphan":
        print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "locked":
        for worker in gc.get_objects():
            if isinstance(worker, ProcessPrefetchDatasetIterator):
                # Held here, they are as little to be had as from a worker that is no more.
                worker._prefetch_should_stop._cond.acquire()
                worker._set_state_request_count.get_lock().acquire()
        for child in multiprocessing.active_children():
            child.kill()
        print(ends_soon(stream))
        return
    if what == "leave":
        print(batch["image"].shape)
        return
    caught = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: caught.append(number))
        os.killpg(0, number)
    for _ in range(100):
        batch = next(stream)
    print("went on after", sorted(signal.Signals(number).name for number in caught))
    os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
    print(ends_soon(stream))
    print(len(multiprocessing.active_children()), "left")


if __name__ == "__main__":
    main(sys.argv[1])
