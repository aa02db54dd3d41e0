import threading
import time

import jax
import numpy as np
import pytest

from vit_jax.training.distributed.device_batches import on_devices
from vit_jax.training.distributed.sharding import make_mesh


class Loader:
    """Batches of numbers, with a count of those made."""

    def __init__(self, count, error=None):
        self.made, self.closed = 0, False
        self._count, self._error = count, error

    def batches(self):
        try:
            for number in range(self._count):
                self.made += 1
                yield {"label": np.full(4, number)}
            if self._error:
                raise self._error
        finally:
            self.closed = True


def placed(loader):
    return on_devices(loader.batches(), make_mesh(jax.devices("cpu")[:1]))


def wait_until(condition):
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    return condition()


def test_all_batches_come_in_their_order_on_the_devices():
    batches = list(placed(Loader(5)))
    assert [int(batch["label"][3]) for batch in batches] == [0, 1, 2, 3, 4]
    assert all(isinstance(batch["label"], jax.Array) for batch in batches)


def test_one_batch_is_made_ahead_while_the_step_runs_and_no_more():
    loader = Loader(5)
    batches = placed(loader)
    for taken in (1, 2, 3):
        next(batches)
        assert wait_until(lambda taken=taken: loader.made == taken + 1)
        time.sleep(0.01)
        assert loader.made == taken + 1
    batches.close()


def test_an_error_comes_in_the_place_of_its_batch():
    batches = placed(Loader(2, error=OSError("a disk is gone")))
    assert [int(next(batches)["label"][0]) for _ in range(2)] == [0, 1]
    with pytest.raises(OSError, match="a disk is gone"):
        next(batches)


def test_closing_ends_the_thread_and_closes_the_loader():
    loader = Loader(100)
    batches = placed(loader)
    next(batches)
    batches.close()
    assert loader.closed and loader.made <= 2
    assert not [t for t in threading.enumerate() if t.name.startswith("batches")]
