"""Random access to batches by step: a function of the step alone, whatever was read before."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypedDict

import numpy as np
from jaxtyping import Float32, Int32, UInt8

from vit_jax.data.features import Example, stacked
from vit_jax.data.images.packing import pack, unpack
from vit_jax.data.images.preprocess import Preprocessing
from vit_jax.data.sampler import (
    FOR_AUGMENTATION,
    FOR_SUBSTITUTES,
    Order,
    Position,
)
from vit_jax.data.sources.source import Source
from vit_jax.data.texts import Texts
from vit_jax.data.transforms.mosaic import Mosaics
from vit_jax.data.transforms.random_crop import TRIES, crop_followers, is_varied
from vit_jax.data.transforms.registry import Transform
from vit_jax.data.transforms.spatial import followers_of
from vit_jax.data.transforms.views import Augmentation, reads_crops
from vit_jax.errors import DecodeError, UserError

MOST_SUBSTITUTES = 100  # tries for one bad image before the whole source counts as unreadable


class Batch(TypedDict, total=False):
    """One host's block of a global batch: the features of its examples, stacked.

    Without labels there is no `label`. A label is the index of a class; for multi-label data, a 0
    or 1 for each class. `mask` is part of evaluation batches, where 0 marks padding and unreadable
    images. Other features of the source have their own names.
    """

    image: UInt8[np.ndarray, "batch h w c"]
    label: Int32[np.ndarray, " batch"] | Float32[np.ndarray, "batch classes"]
    mask: Float32[np.ndarray, " batch"]


class Made(NamedTuple):
    """Batch and the images that could not be read for it."""

    batch: Batch
    unreadable: list[DecodeError]


@dataclasses.dataclass(frozen=True)
class Blocks:
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
                f"batch_size is {size}, which is not divisible by the number of hosts, {hosts}; "
                f"use {legal}"
            )

    def __getitem__(self, step: int) -> range:
        """Return the positions of the stream that this host takes at a step."""
        block = self.batch_size // self.process_count
        start = step * self.batch_size + self.process_index * block
        return range(start, start + block)


class Reader(Protocol):
    """Training examples at the model's size, which may be cropped at random."""

    def __len__(self) -> int: ...

    def read(self, index: int, rng: np.random.Generator) -> Example: ...


# Grain could batch examples itself. Building whole batches here is twice as fast for small images,
# because Grain's overhead per example (75 microseconds) is half of the work.
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TrainStream:
    """Random access to this host's training batches, by step."""

    reader: "Reader"
    transform: Transform
    order: Order
    seed: int
    blocks: Blocks
    steps: int
    name: str
    strict: bool

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> Made:
        places = [self.order[position] for position in self.blocks[step]]
        examples, unreadable = [], []
        for place, rng in zip(places, _augmentation_rngs(self.seed, places), strict=True):
            example, rng = self._example(place, rng, unreadable)
            examples.append(self.transform(example, rng))
        return Made(_stacked(examples), unreadable)

    def _example(
        self, place: Position, rng: np.random.Generator, unreadable: list[DecodeError]
    ) -> tuple[Example, np.random.Generator]:
        """Return the example of a position, or the substitute of an unreadable image.

        The second result is the generator for its augmentation.
        """
        try:
            return self.reader.read(place.example, rng), rng
        except DecodeError as error:
            if self.strict:
                raise
            unreadable.append(_plain(error))
        for index in self._substitutes(place):
            rng = next(
                _augmentation_rngs(self.seed, [place])
            )  # restart: the crop has drawn numbers
            try:
                return self.reader.read(index, rng), rng
            except DecodeError as error:
                unreadable.append(_plain(error))
        raise UserError(
            f"{len(unreadable):,} images of {self.name} were tried and none can be read; the first:"
            f" {unreadable[0]}"
        )

    def _substitutes(self, place: Position) -> Iterable[int]:
        rng = np.random.default_rng((FOR_SUBSTITUTES, self.seed, *place))
        examples = len(self.reader)
        return rng.choice(examples, min(examples, MOST_SUBSTITUTES), replace=False).tolist()


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class EvalStream:
    """Random access to this host's evaluation batches, by step."""

    reader: Sequence[Example]
    padding: Example
    blocks: Blocks
    strict: bool

    def __len__(self) -> int:
        return math.ceil(len(self.reader) / self.blocks.batch_size)

    def __getitem__(self, step: int) -> Made:
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
        return Made({**_stacked(examples), "mask": np.array(mask, np.float32)}, unreadable)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Ready:
    """Examples of the model's size."""

    examples: Sequence[Example]

    def __len__(self) -> int:
        return len(self.examples)

    def read(self, index: int, rng: np.random.Generator) -> Example:
        """Return the example; no random number is drawn."""
        del rng
        return self.examples[index]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Cropped:
    """Random crops of the examples of a source, read by the fastest decoder available."""

    source: Source
    preprocess: Preprocessing
    augment: Augmentation

    def __len__(self) -> int:
        return len(self.source)

    def read(self, index: int, rng: np.random.Generator) -> Example:
        """Return a random crop, which takes the first random numbers."""
        kinds = followers_of(self.source.features)
        share = getattr(self.augment, "class_share", 1)
        if share < 1 and "mask" in kinds.values():
            return self._varied(index, kinds, share, rng)
        how = self.augment.decoding(self.preprocess, rng)
        example = self.source.listed(self.source.read(index, how))
        return crop_followers(example, kinds, how.crop)

    def _varied(
        self, index: int, kinds: Mapping[str, str], share: float, rng: np.random.Generator
    ) -> Example:
        """Return the first of some crops in which no class has too large a share, or the last."""
        whole = self.source.read(index, self.preprocess.decoding(fast=True))
        whole = self.source.listed(whole)
        for _ in range(TRIES):
            crop = self.augment.make_crop(self.preprocess, rng)
            image = crop(whole["image"], *whole["image"].shape[:2])
            example = crop_followers({**whole, "image": image}, kinds, crop)
            if is_varied(example, kinds, share):
                break
        return example


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class WithRows:
    """Examples with additional rows."""

    examples: "Reader"
    rows: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.examples)

    def read(self, index: int, rng: np.random.Generator) -> Example:
        """Return the example with its rows."""
        rows = {name: table[index] for name, table in self.rows.items()}
        return {**self.examples.read(index, rng), **rows}


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Captioned:
    """Examples with one of their captions, drawn anew at every read."""

    examples: "Reader"
    texts: Texts

    def __len__(self) -> int:
        return len(self.examples)

    def read(self, index: int, rng: np.random.Generator) -> Example:
        """Return the example; its crop takes the first random numbers, its caption the next."""
        example = self.examples.read(index, rng)
        return {**example, "text": self.texts.drawn(index, rng)}


def open_reader(
    source: Source,
    preprocess: Preprocessing,
    augment: Augmentation,
    open_whole: Callable[[], Sequence[Example]],
) -> Reader:
    """Return the reader of training examples before they are augmented.

    Args:
      open_whole: opens the preprocessed examples; not called if random crops replace them.
    """
    crops = reads_crops(augment)
    reader = Cropped(source, preprocess, augment) if crops else Ready(open_whole())
    if share := getattr(augment, "mosaic", 0):
        reader = Mosaics(reader, share, source.features)
    if source.texts is not None and source.texts.several:
        reader = Captioned(reader, source.texts)
    return reader


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Repacked:
    """Transform of packed images: the images at their own size are transformed."""

    transform: Transform
    preprocess: Preprocessing

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Return the transformed example, with its image packed again."""
        patch_size, budget = self.preprocess.patch_size, self.preprocess.max_tokens
        image = unpack(example["image"], patch_size)
        made = self.transform({**example, "image": image}, rng)
        return {**made, "image": pack(made["image"], patch_size, budget)}


def _stacked(examples: list[Example]) -> Batch:
    """Stack the features of examples, which all have the same ones."""
    batch: Batch = {}
    for name in examples[0]:
        arrays = [example[name] for example in examples]
        if name == "label":
            batch[name] = _stacked_labels(arrays)
        elif name == "image" and arrays[0].ndim == 3:
            batch[name] = _stacked_images(arrays)
        else:
            batch[name] = stacked(name, arrays)
    return batch


def _stacked_images(images: list[np.ndarray]) -> UInt8[np.ndarray, "batch h w c"]:
    batch = np.empty((len(images), *images[0].shape), np.uint8)
    for place, image in zip(batch, images, strict=True):
        if image.flags.c_contiguous:
            place[:] = image
        else:  # a flipped image; numpy copies it four times as fast channel by channel
            for channel in range(image.shape[2]):
                place[:, :, channel] = image[:, :, channel]
    return batch


def _stacked_labels(
    labels: list,
) -> Int32[np.ndarray, " batch"] | Float32[np.ndarray, "batch classes"]:
    several = isinstance(labels[0], np.ndarray)
    return np.array(labels, np.float32 if several else np.int32)


def _plain(error: DecodeError) -> DecodeError:
    """Return the error without its traceback, which would keep frames and images in memory."""
    return DecodeError(error.name, error.cause)


def augmentation_rng(seed: int, epoch: int, example: int) -> np.random.Generator:
    """Return the generator of random numbers for the augmentation of an example in an epoch."""
    return next(_augmentation_rngs(seed, [Position(epoch, example)]))


def _augmentation_rngs(seed: int, places: Iterable[Position]) -> Iterator[np.random.Generator]:
    """Yield a generator of random numbers for every position, each valid until the next.

    Philox (Salmon et al., 2011, "Parallel Random Numbers: As Easy as 1, 2, 3") is a function of a
    key and a counter. Setting the counter takes 3 microseconds, creating a generator 40.
    """
    bits = np.random.Philox(key=[seed, FOR_AUGMENTATION])
    rng = np.random.Generator(bits)
    fresh = bits.state
    for epoch, example, copy in places:
        # The lowest word counts the numbers drawn.
        fresh["state"]["counter"] = np.array([0, copy, epoch, example], np.uint64)
        bits.state = fresh
        yield rng
