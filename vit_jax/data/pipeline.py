"""From a source to batches: in which order, in which epoch, on which host.

The order is arithmetic, not state. Position i of the training stream lies in epoch `i // N`, and
every epoch has its own permutation of the N examples; step s takes the positions from `s * B` to
`(s + 1) * B`, across the border of epochs, so nothing is dropped. Therefore

- a place in the data is the number of batches taken: going on from step s needs no other state;
- the stream does not depend on workers, threads or hosts: a host takes a contiguous block of every
  global batch, and augmentation is keyed by (seed, epoch, example), not by place in the stream.

Reading ahead, in threads or in worker processes, is Grain's.
"""

import dataclasses
import functools
import math
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import NotRequired, TypedDict

import grain
import numpy as np
from absl import flags
from jaxtyping import Float32, Int32, Int64, UInt8

from vit_jax.data.augment import Augment
from vit_jax.data.preprocess import Preprocessing
from vit_jax.data.sources import IN_MEMORY_BYTES, Example, MemoryExamples, Source
from vit_jax.errors import UserError

# What the random numbers of one seed are for; two uses must never share a stream.
_FOR_ORDER, _FOR_AUGMENTATION = 0, 1


class Batch(TypedDict):
    """One host's block of a global batch; `mask` comes in evaluation, where 0 marks padding."""

    image: UInt8[np.ndarray, "batch h w c"]
    label: Int32[np.ndarray, " batch"]
    mask: NotRequired[Float32[np.ndarray, " batch"]]


@dataclasses.dataclass(frozen=True)
class TrainOrder:
    """Which example stands where in the endless training stream.

    Attributes:
      examples: number of examples in an epoch, at least 1.
      seed: whole number from 0 to 2**64 - 1; another seed is another order.

    Raises:
      UserError: an attribute is out of its range.
    """

    examples: int
    seed: int

    def __post_init__(self):
        if self.examples < 1:
            raise UserError("the training split is empty; training needs at least one example")
        if not 0 <= self.seed < 2**64:
            raise UserError(f"seed is {self.seed}; it must be a whole number from 0 to 2**64 - 1")

    def __getitem__(self, position: int) -> tuple[int, int]:
        """(epoch, example) at a position of the stream, both counted from 0."""
        epoch, place = divmod(position, self.examples)
        return epoch, int(_permutation(self.examples, self.seed, epoch)[place])


# A batch lies in one or two epochs, and reading ahead may already be in the next ones.
@functools.lru_cache(maxsize=4)
def _permutation(examples: int, seed: int, epoch: int) -> Int64[np.ndarray, " examples"]:
    return np.random.default_rng((_FOR_ORDER, seed, epoch)).permutation(examples)


def train_batches(
    source: Source,
    preprocess: Preprocessing,
    augment: Augment,
    *,
    batch_size: int,
    seed: int,
    start_step: int,
    total_steps: int,
    workers: int = 0,
    process_index: int = 0,
    process_count: int = 1,
) -> Iterator[Batch]:
    """This host's batches of the steps `start_step`, ..., `total_steps - 1`.

    Args:
      source: the training examples.
      preprocess: applied before augmentation; once per picture where the source is in memory.
      augment: applied anew in every epoch.
      batch_size: of the global batch; this host gets `batch_size / process_count` examples.
      seed: of order and augmentation.
      start_step: number of batches already taken.
      total_steps: number of batches of the whole run.
      workers: worker processes that decode and augment; 0 leaves it to threads of this process.
        A script that uses workers needs an `if __name__ == "__main__":` guard.
      process_index: number of this host, from 0.
      process_count: number of hosts.

    Returns:
      An iterator of `{"image": uint8 (b, h, w, c), "label": int32 (b,)}` in numpy. Its `close()`
      ends threads and workers.

    Raises:
      UserError: the batch does not divide among the hosts, or the source is empty.
    """
    stream = _TrainStream(
        pictures=_preprocessed(source, preprocess),
        augment=augment,
        order=TrainOrder(len(source), seed),
        blocks=_Blocks(batch_size, process_index, process_count),
        steps=total_steps,
    )
    batches = grain.MapDataset.source(stream)[start_step:total_steps]
    return _read_ahead(batches, source, workers)


def eval_batches(
    source: Source,
    preprocess: Preprocessing,
    *,
    batch_size: int,
    process_index: int = 0,
    process_count: int = 1,
) -> Iterator[Batch]:
    """This host's batches of one pass over the source: every example once, in the source's order.

    Args:
      source: the examples.
      preprocess: applied to every picture.
      batch_size: of the global batch; this host gets `batch_size / process_count` examples.
      process_index: number of this host, from 0.
      process_count: number of hosts.

    Returns:
      An iterator of `{"image": uint8 (b, h, w, c), "label": int32 (b,), "mask": float32 (b,)}` in
      numpy, with as many batches on every host. `mask` is 1 for an example and 0 for the padding
      (black, label 0) that fills the last global batch.

    Raises:
      UserError: the batch does not divide among the hosts.
    """
    stream = _EvalStream(
        pictures=_preprocessed(source, preprocess),
        padding=np.zeros((*preprocess.size, preprocess.channels), np.uint8),
        blocks=_Blocks(batch_size, process_index, process_count),
    )
    return _read_ahead(grain.MapDataset.source(stream), source, workers=0)


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """How the global batches of a stream divide into one contiguous block per host."""

    batch_size: int
    process_index: int
    process_count: int

    def __post_init__(self):
        size, hosts = self.batch_size, self.process_count
        if size < 1 or size % hosts:
            below = size - size % hosts
            legal = f"{below} or {below + hosts}" if below > 0 else str(hosts)
            raise UserError(
                f"batch_size is {size}, which does not divide among {hosts} host"
                f"{'s' if hosts > 1 else ''}; the nearest legal value is {legal}"
            )

    def __getitem__(self, step: int) -> range:
        """The positions of the stream that this host takes at a step."""
        block = self.batch_size // self.process_count
        start = step * self.batch_size + self.process_index * block
        return range(start, start + block)


# Grain could make batches of examples itself. Making whole batches here is twice as fast for small
# pictures, where Grain's bookkeeping per example (75 microseconds) is half of the work.
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class _TrainStream:
    """Random access to this host's training batches, by step."""

    pictures: Sequence[Example]
    augment: Augment
    order: TrainOrder
    blocks: _Blocks
    steps: int

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> Batch:
        places = [self.order[position] for position in self.blocks[step]]
        images, labels = [], []
        for (_, index), rng in zip(
            places, _augmentation_rngs(self.order.seed, places), strict=True
        ):
            example = self.pictures[index]
            images.append(self.augment(example["image"], rng))
            labels.append(example["label"])
        return {"image": np.stack(images), "label": np.array(labels, np.int32)}


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class _EvalStream:
    """Random access to this host's evaluation batches, by step."""

    pictures: Sequence[Example]
    padding: UInt8[np.ndarray, "h w c"]
    blocks: _Blocks

    def __len__(self) -> int:
        return math.ceil(len(self.pictures) / self.blocks.batch_size)

    def __getitem__(self, step: int) -> Batch:
        positions = self.blocks[step]
        examples = [self.pictures[index] for index in positions if index < len(self.pictures)]
        missing = len(positions) - len(examples)
        images = [example["image"] for example in examples] + [self.padding] * missing
        labels = [example["label"] for example in examples] + [0] * missing
        mask = [1] * len(examples) + [0] * missing
        return {
            "image": np.stack(images),
            "label": np.array(labels, np.int32),
            "mask": np.array(mask, np.float32),
        }


def _augmentation_rngs(
    seed: int, places: Iterable[tuple[int, int]]
) -> Iterator[np.random.Generator]:
    """A generator of random numbers for every (epoch, example), each valid until the next.

    Philox (Salmon et al., 2011, "Parallel Random Numbers: As Easy as 1, 2, 3") is a function of a
    key and a counter. Setting the counter costs 3 microseconds, making a new generator 40.
    """
    bits = np.random.Philox(key=[seed, _FOR_AUGMENTATION])
    rng = np.random.Generator(bits)
    fresh = bits.state
    for epoch, example in places:
        # The two low words count the numbers drawn.
        fresh["state"]["counter"] = np.array([0, 0, epoch, example], np.uint64)
        bits.state = fresh
        yield rng


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class _Preprocessed:
    """The examples of a source, each preprocessed when it is asked for."""

    source: Source
    preprocess: Preprocessing

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Example:
        example = self.source[index]
        return {"image": self.preprocess(example["image"]), "label": example["label"]}


# Evaluation comes back to the same source every few minutes; a source that is gone is forgotten.
_kept_sources = weakref.WeakKeyDictionary[Source, dict[Preprocessing, MemoryExamples]]()


def _preprocessed(source: Source, preprocess: Preprocessing) -> Sequence[Example]:
    """The preprocessed examples, computed once and kept where source and result are small."""
    examples = _Preprocessed(source, preprocess)
    size = len(source) * math.prod(preprocess.size) * preprocess.channels
    if not source.in_memory or size > IN_MEMORY_BYTES:
        return examples
    kept = _kept_sources.setdefault(source, {})
    if preprocess not in kept:
        kept[preprocess] = MemoryExamples.read(examples)
    return kept[preprocess]


def _read_ahead(batches: grain.MapDataset, source: Source, workers: int) -> Iterator[Batch]:
    # Threads help where they wait for disk or decoder; on arrays they would only wait for the GIL.
    threads = 1 if source.in_memory else 16
    dataset = batches.to_iter_dataset(grain.ReadOptions(threads, prefetch_buffer_size=16))
    if workers:
        # Grain's workers read absl flags, which nobody has parsed in a notebook or a test.
        if not flags.FLAGS.is_parsed():
            flags.FLAGS.mark_as_parsed()
        dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    return _until_closed(dataset)


def _until_closed(dataset: grain.IterDataset) -> Iterator[Batch]:
    iterator = iter(dataset)
    try:
        yield from iterator
    finally:
        iterator.close()
