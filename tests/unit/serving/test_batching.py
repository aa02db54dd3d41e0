"""Images of several requests share batches; errors and stops belong to the right request."""

import asyncio
import threading

import pytest

from vit_jax.serving.batching import Batcher


def run(use, compute=lambda batch: [10 * item for item in batch], **options):
    """Return the result of `use(batcher)`, and the sizes of the batches."""
    sizes = []

    async def main():
        async with Batcher(compute, observe=sizes.append, **options) as batcher:
            return await asyncio.wait_for(use(batcher), 10)

    return asyncio.run(main()), sizes


async def all_of(batcher, items):
    return await asyncio.gather(*map(batcher.submit, items), return_exceptions=True)


def test_images_that_wait_are_computed_together_in_order():
    found, sizes = run(lambda batcher: all_of(batcher, range(21)), most=8, seconds=0)
    assert found == [10 * item for item in range(21)]
    assert sizes == [8, 8, 5]


def test_a_single_client_does_not_wait_for_others():
    found, sizes = run(lambda batcher: batcher.submit(7), most=8, seconds=60)
    assert (found, sizes) == (70, [1])


def test_an_image_on_its_way_is_waited_for():
    coming = 2

    async def use(batcher):
        nonlocal coming
        first = asyncio.ensure_future(batcher.submit(1))
        await asyncio.sleep(0.01)
        coming = 0
        return [await batcher.submit(2), await first]

    found, sizes = run(use, most=8, seconds=60, coming=lambda: coming)
    assert (found, sizes) == ([20, 10], [2])


def test_nothing_waits_longer_than_it_may():
    found, sizes = run(lambda batcher: batcher.submit(1), most=8, seconds=0.01, coming=lambda: 1)
    assert (found, sizes) == (10, [1])


def test_what_arrives_during_a_batch_is_the_next_batch():
    begun, may_end = threading.Event(), threading.Event()

    def compute(batch):
        begun.set()
        may_end.wait(5)
        return batch

    async def use(batcher):
        first = asyncio.ensure_future(batcher.submit(0))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        others = asyncio.ensure_future(all_of(batcher, (1, 2, 3)))
        await asyncio.sleep(0.01)
        assert len(batcher) == 3
        may_end.set()
        return [await first, *await others]

    assert run(use, compute, most=8, seconds=0) == ([0, 1, 2, 3], [1, 3])


def test_an_error_of_an_image_is_its_own_and_a_failure_that_of_its_batch():
    def compute(batch):
        if "worst" in batch:
            raise RuntimeError("the device is gone")
        return [ValueError(item) if item == "bad" else item for item in batch]

    async def use(batcher):
        return [await all_of(batcher, batch) for batch in (("a", "bad", "b"), ("c", "worst"), "d")]

    [(first, bad, second), failed, last], _ = run(use, compute, most=8, seconds=0)
    assert (first, second, last) == ("a", "b", ["d"])
    assert isinstance(bad, ValueError)
    assert [str(one) for one in failed] == ["the device is gone"] * 2


def test_nothing_is_computed_for_a_client_that_has_left():
    computed = []

    async def use(batcher):
        gone = asyncio.ensure_future(batcher.submit("gone"))
        here = asyncio.ensure_future(batcher.submit("here"))
        await asyncio.sleep(0)
        gone.cancel()
        return await here

    found, sizes = run(use, lambda batch: computed.extend(batch) or batch, most=8, seconds=0)
    assert (found, sizes, computed) == ("here", [1], ["here"])


def test_what_waits_at_a_stop_is_cancelled():
    async def main():
        async with Batcher(list, most=1, seconds=0) as batcher:
            waiting = asyncio.ensure_future(batcher.submit(1))
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
