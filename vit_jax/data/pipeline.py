"""Input pipeline from a source to batches: the same ones on any machine, from any step on.

Step s of training takes the positions from `s * B` to `(s + 1) * B` of an order (see `order`),
across the border of epochs, so nothing is dropped. Therefore

- a place in the data is the number of batches taken: going on from step s needs no other state;
- the stream does not depend on workers, threads or hosts: a host takes a contiguous block of every
  global batch, and augmentation is keyed by (seed, epoch, example, copy), not by place in the
  stream.

An image that cannot be read must not move its neighbours. In training another one, drawn by the
place of the bad one, is put there; in evaluation its place stays, black and masked.

Reading ahead, in threads or in worker processes, is Grain's.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, NotRequired, TypedDict

import numpy as np
from jaxtyping import Float32, Int32, UInt8

from vit_jax.data.cache import cached
from vit_jax.data.decode_errors import DecodeErrors
from vit_jax.data.images.preprocess import Preprocessing
from vit_jax.data.sampler import (
    FOR_AUGMENTATION,
    FOR_SUBSTITUTES,
    BalancedSampler,
    Order,
    Position,
    RepeatedSampler,
    ShuffledSampler,
)
from vit_jax.data.sources.registry import Example, Source
from vit_jax.data.transforms.augment import Augment
from vit_jax.errors import DecodeError, UserError

MOST_SUBSTITUTES = 100  # tried for one bad image before the whole source counts as unreadable


class Batch(TypedDict):
    """One host's block of a global batch.

    A label is the number of a class; where images have several, a 0 or 1 for each class. `mask`
    comes in evaluation, where 0 marks padding and images that cannot be read.
    """

    image: UInt8[np.ndarray, "batch h w c"]
    label: Int32[np.ndarray, " batch"] | Float32[np.ndarray, "batch classes"]
    mask: NotRequired[Float32[np.ndarray, " batch"]]


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
    balanced: bool = False,
    repeats: int = 1,
    bad: DecodeErrors | None = None,
    rows: Mapping[str, np.ndarray] | None = None,
) -> Iterator[Batch]:
    """Yield this host's batches of the steps `start_step`, ..., `total_steps - 1`.

    Args:
      source: the training examples.
      preprocess: applied before augmentation, once per image where the results fit in memory;
        random-resized cropping, which works from the image at its own size, takes its place.
      augment: applied anew in every epoch.
      batch_size: of the global batch; this host gets `batch_size / process_count` examples.
      seed: of order and augmentation.
      start_step: number of batches already taken.
      total_steps: number of batches of the whole run.
      workers: worker processes that decode and augment; 0 leaves it to threads of this process,
        which is best for small images. A script that uses workers needs an
        `if __name__ == "__main__":` guard.
      process_index: number of this host, from 0.
      process_count: number of hosts.
      balanced: whether every class comes equally often instead of every example.
      repeats: how many copies of an image follow each other, each augmented anew.
      bad: takes note of images that cannot be read; default: names them on the standard error.
      rows: what else is known of every example, by name; row i travels with example i.

    Returns:
      An iterator of `{"image": uint8 (b, h, w, c), "label": int32 (b,)}` in numpy, and of what is
      in `rows`; the label is float32 (b, classes) for multi-label data. Its `close()` ends threads
      and workers.

    Raises:
      UserError: the batch does not divide among the hosts, the source is empty, or the options do
        not fit it. While iterating: no image can be read, or a worker died.
      DecodeError: while iterating, an image cannot be read and `bad` is strict.
    """
    bad = DecodeErrors() if bad is None else bad
    augment.check_channels(preprocess.channels)
    order: Order = (
        BalancedSampler(source.labels, seed) if balanced else ShuffledSampler(len(source), seed)
    )
    if augment.random_resized_crop > 0:
        reader = _Cropped(source, preprocess, augment)
    else:
        reader = _Ready(cached(source, preprocess, fast=True, processes=max(1, workers)))
    stream = _TrainStream(
        reader=_WithRows(reader, rows) if rows else reader,
        augment=augment,
        order=RepeatedSampler(order, repeats) if repeats != 1 else order,
        seed=seed,
        blocks=_Blocks(batch_size, process_index, process_count),
        steps=total_steps,
        name=f"{source.name} {source.split}",
        strict=bad.strict,
    )
    return _batches(stream, source, preprocess, bad, start_step, workers)


def eval_batches(
    source: Source,
    preprocess: Preprocessing,
    *,
    batch_size: int,
    process_index: int = 0,
    process_count: int = 1,
    bad: DecodeErrors | None = None,
    fast: bool = False,
) -> Iterator[Batch]:
    """Yield this host's batches of one pass over the source: every example once, in order.

    Args:
      source: the examples.
      preprocess: applied to every image.
      batch_size: of the global batch; this host gets `batch_size / process_count` examples.
      process_index: number of this host, from 0.
      process_count: number of hosts.
      bad: takes note of images that cannot be read; default: names them on the standard error.
      fast: whether the quicker decoder may read them, as in training.

    Returns:
      An iterator of `{"image": uint8 (b, h, w, c), "label": int32 (b,), "mask": float32 (b,)}` in
      numpy, with as many batches on every host. `mask` is 1 for an example and 0 for what must not
      count (black, label 0): an image that cannot be read, and the padding that fills the last
      global batch. The label is float32 (b, classes) for multi-label data.

    Raises:
      UserError: the batch does not divide among the hosts.
      DecodeError: while iterating, an image cannot be read and `bad` is strict.
    """
    bad = DecodeErrors() if bad is None else bad
    no_label = np.zeros(len(source.class_names), np.uint8) if source.multi_label else 0
    stream = _EvalStream(
        reader=cached(source, preprocess, fast=fast),
        padding={
            "image": np.zeros((*preprocess.size, preprocess.channels), np.uint8),
            "label": no_label,
        },
        blocks=_Blocks(batch_size, process_index, process_count),
        strict=bad.strict,
    )
    return _batches(stream, source, preprocess, bad)


class _Made(NamedTuple):
    """A batch, and which images could not be read on the way."""

    batch: Batch
    unreadable: list[DecodeError]


def _batches(
    stream: "_TrainStream | _EvalStream",
    source: Source,
    preprocess: Preprocessing,
    bad: DecodeErrors,
    start_step: int = 0,
    workers: int = 0,
) -> Iterator[Batch]:
    block = stream.blocks.batch_size // stream.blocks.process_count
    from vit_jax.data.prefetch import read_ahead  # Grain takes a second to import

    made = read_ahead(
        stream,
        start_step,
        item_bytes=block * math.prod(preprocess.size) * preprocess.channels,
        # Threads help where they wait for disk or decoder; on arrays they only wait for the GIL.
        threads=1 if source.in_memory else None,
        workers=workers,
    )
    return _noting(made, bad)


def _noting(made: Iterator[_Made], bad: DecodeErrors) -> Iterator[Batch]:
    """The batches alone; what could not be read goes to `bad`."""
    try:
        for batch, unreadable in made:
            bad.add(unreadable)
            yield batch
    finally:
        made.close()


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """Division of the global batches of a stream into one contiguous block per host."""

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
# images, where Grain's bookkeeping per example (75 microseconds) is half of the work.
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class _TrainStream:
    """Random access to this host's training batches, by step."""

    reader: "_Ready | _Cropped | _WithRows"
    augment: Augment
    order: Order
    seed: int
    blocks: _Blocks
    steps: int
    name: str
    strict: bool

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> _Made:
        places = [self.order[position] for position in self.blocks[step]]
        images, labels, others, unreadable = [], [], [], []
        for place, rng in zip(places, _augmentation_rngs(self.seed, places), strict=True):
            example, rng = self._example(place, rng, unreadable)
            images.append(self.augment(example["image"], rng))
            labels.append(example["label"])
            others.append({k: v for k, v in example.items() if k not in ("image", "label")})
        batch: Batch = {
            "image": _stacked_images(images),
            "label": _stacked_labels(labels),
            **{name: np.stack([other[name] for other in others]) for name in others[0]},
        }
        return _Made(batch, unreadable)

    def _example(
        self, place: Position, rng: np.random.Generator, unreadable: list[DecodeError]
    ) -> tuple[Example, np.random.Generator]:
        """The example of a place, or what takes the place of an image that cannot be read.

        With it comes what is left of the random numbers to augment it with.
        """
        try:
            return self.reader.read(place.example, rng), rng
        except DecodeError as error:
            if self.strict:
                raise
            unreadable.append(_plain(error))
        for index in self._substitutes(place):
            rng = next(_augmentation_rngs(self.seed, [place]))  # as if nothing had been drawn
            try:
                return self.reader.read(index, rng), rng
            except DecodeError as error:
                unreadable.append(_plain(error))
        raise UserError(
            f"of the images of {self.name}, {len(unreadable):,} were tried in a row and none can"
            f" be read; the first: {unreadable[0]}"
        )

    def _substitutes(self, place: Position) -> Iterable[int]:
        rng = np.random.default_rng((FOR_SUBSTITUTES, self.seed, *place))
        examples = len(self.reader)
        return rng.choice(examples, min(examples, MOST_SUBSTITUTES), replace=False).tolist()


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class _EvalStream:
    """Random access to this host's evaluation batches, by step."""

    reader: Sequence[Example]
    padding: Example
    blocks: _Blocks
    strict: bool

    def __len__(self) -> int:
        return math.ceil(len(self.reader) / self.blocks.batch_size)

    def __getitem__(self, step: int) -> _Made:
        examples, mask, unreadable = [], [], []
        for index in self.blocks[step]:
            example = self.padding
            if index < len(self.reader):
                try:
                    example = self.reader[index]
                except DecodeError as error:
                    if self.strict:
                        raise
                    unreadable.append(_plain(error))
            examples.append(example)
            mask.append(example is not self.padding)
        batch: Batch = {
            "image": _stacked_images([example["image"] for example in examples]),
            "label": _stacked_labels([example["label"] for example in examples]),
            "mask": np.array(mask, np.float32),
        }
        return _Made(batch, unreadable)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class _Ready:
    """Examples of the model's size."""

    examples: Sequence[Example]

    def __len__(self) -> int:
        return len(self.examples)

    def read(self, index: int, rng: np.random.Generator) -> Example:
        """The example; nothing is drawn."""
        del rng
        return self.examples[index]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class _Cropped:
    """Random crops of the examples of a source, read by the quickest decoder there is."""

    source: Source
    preprocess: Preprocessing
    augment: Augment

    def __len__(self) -> int:
        return len(self.source)

    def read(self, index: int, rng: np.random.Generator) -> Example:
        """A crop, which takes the first of the random numbers."""
        return self.source.read(index, self.augment.decoding(self.preprocess, rng))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class _WithRows:
    """Examples, each with its row of some tables."""

    examples: "_Ready | _Cropped"
    rows: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.examples)

    def read(self, index: int, rng: np.random.Generator) -> Example:
        """The example and its rows."""
        rows = {name: table[index] for name, table in self.rows.items()}
        return {**self.examples.read(index, rng), **rows}


def _stacked_images(images: list[np.ndarray]) -> UInt8[np.ndarray, "batch h w c"]:
    batch = np.empty((len(images), *images[0].shape), np.uint8)
    for place, image in zip(batch, images, strict=True):
        if image.flags.c_contiguous:
            place[:] = image
        else:  # a flipped one; numpy copies it four times as fast channel by channel
            for channel in range(image.shape[2]):
                place[:, :, channel] = image[:, :, channel]
    return batch


def _stacked_labels(
    labels: list,
) -> Int32[np.ndarray, " batch"] | Float32[np.ndarray, "batch classes"]:
    several = isinstance(labels[0], np.ndarray)
    return np.array(labels, np.float32 if several else np.int32)


def _plain(error: DecodeError) -> DecodeError:
    """The error without its traceback, which would keep the frames and images of its origin."""
    return DecodeError(error.name, error.cause)


def augmentation_rng(seed: int, epoch: int, example: int) -> np.random.Generator:
    """The random numbers that training augments an example with in an epoch."""
    return next(_augmentation_rngs(seed, [Position(epoch, example)]))


def _augmentation_rngs(seed: int, places: Iterable[Position]) -> Iterator[np.random.Generator]:
    """A generator of random numbers for every place, each valid until the next.

    Philox (Salmon et al., 2011, "Parallel Random Numbers: As Easy as 1, 2, 3") is a function of a
    key and a counter. Setting the counter costs 3 microseconds, making a new generator 40.
    """
    bits = np.random.Philox(key=[seed, FOR_AUGMENTATION])
    rng = np.random.Generator(bits)
    fresh = bits.state
    for epoch, example, copy in places:
        # The lowest word counts the numbers drawn.
        fresh["state"]["counter"] = np.array([0, copy, epoch, example], np.uint64)
        bits.state = fresh
        yield rng
