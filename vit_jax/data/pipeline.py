"""Input pipeline from a source to batches: the same ones on any machine, from any step on.

Step s of training takes the positions from `s * B` to `(s + 1) * B` of a sampler, across the border
of epochs, so nothing is dropped. Therefore

- the position in the data is the number of batches taken: resuming at step s needs no other state;
- the stream does not depend on workers, threads or hosts: a host takes a contiguous block of every
  global batch, and augmentation is keyed by (seed, epoch, example, copy), not by position in the
  stream.

An unreadable image must not shift the following ones. Training replaces it by another one, chosen
by its position; evaluation keeps its position, black and masked.

Grain prefetches in threads or in worker processes.
"""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from vit_jax.data.cache import cached
from vit_jax.data.decode_errors import DecodeErrors
from vit_jax.data.features import Example, Features, has_clips
from vit_jax.data.images.preprocess import Preprocessing
from vit_jax.data.sampler import (
    BalancedSampler,
    Order,
    RepeatedSampler,
    ShuffledSampler,
)
from vit_jax.data.sources.source import Source
from vit_jax.data.streams import (
    MOST_SUBSTITUTES,
    Batch,
    Blocks,
    EvalStream,
    Made,
    Repacked,
    TrainStream,
    WithRows,
    open_reader,
)
from vit_jax.data.transforms.registry import features_after
from vit_jax.data.transforms.views import Augmentation
from vit_jax.errors import DecodeError, UserError


def train_batches(
    source: Source,
    preprocess: Preprocessing,
    augment: Augmentation,
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
      preprocess: applied before augmentation, once per image if the results fit in memory;
        random-resized cropping, which needs the image at its original size, replaces it.
      augment: applied anew in every epoch: `Augment`, `Views` or `MultiCrop`.
      batch_size: of the global batch; this host gets `batch_size / process_count` examples.
      seed: seed of sampling and augmentation.
      start_step: number of batches already taken.
      total_steps: number of batches of the whole run.
      workers: number of worker processes that decode and augment; 0 uses threads of this process,
        which is best for small images. A script that uses workers needs an
        `if __name__ == "__main__":` guard.
      process_index: number of this host, from 0.
      process_count: number of hosts.
      balanced: whether to sample every class equally often instead of every example.
      repeats: number of consecutive copies of an image, each augmented anew.
      bad: collects unreadable images; default: reports them on standard error.
      rows: additional arrays by name; row i belongs to example i.

    Returns:
      An iterator of `{"image": uint8 (b, h, w, c), "label": int32 (b,)}` in numpy, with further
      features of the source and the arrays of `rows` added; the label is float32 (b, classes) for
      multi-label data, and missing without labels. Its `close()` ends threads and workers.

    Raises:
      UserError: the batch is not divisible by the number of hosts, the source is empty, or the
        options do not fit it. While iterating: no image can be read, or a worker died.
      DecodeError: while iterating, an image cannot be read and `bad` is strict.
    """
    bad = DecodeErrors() if bad is None else bad
    augment.check_channels(preprocess.channels)
    check_packing(preprocess, augment)
    check_clips(source, preprocess, augment)
    if balanced and not source.has_labels:
        raise UserError(
            f"data.sampling is balanced, which needs labels, but {source.name} {source.split} has"
            " none; use natural"
        )
    order: Order = (
        BalancedSampler(source.labels, seed) if balanced else ShuffledSampler(len(source), seed)
    )
    open_whole = functools.partial(cached, source, preprocess, fast=True, processes=max(1, workers))
    reader = open_reader(source, preprocess, augment, open_whole)
    transform = augment.bind(source.features)
    stream = TrainStream(
        reader=WithRows(reader, rows) if rows else reader,
        transform=Repacked(transform, preprocess) if preprocess.max_tokens else transform,
        order=RepeatedSampler(order, repeats) if repeats != 1 else order,
        seed=seed,
        blocks=Blocks(batch_size, process_index, process_count),
        steps=total_steps,
        name=f"{source.name} {source.split}",
        strict=bad.strict,
    )
    views = getattr(augment, "images_per_example", 1)
    return _batches(stream, source, preprocess, bad, start_step, workers, views)


def check_packing(preprocess: Preprocessing, augment: Augmentation) -> None:
    """Raise UserError for an augmentation that makes images of one size of packed images."""
    if not preprocess.max_tokens:
        return
    for name in ("random_resized_crop", "scale_jitter", "mosaic"):
        if value := getattr(augment, name, 0):
            raise UserError(
                f"augment.{name} = {value!r} makes images of one size, but data.max_tokens keeps"
                f" the aspect ratio of each; use --config.augment.{name}=0, or"
                " --config.data.max_tokens=0"
            )
    if getattr(augment, "images_per_example", 1) != 1:
        raise UserError(
            "several views of an image have one size, but data.max_tokens keeps the aspect ratio of"
            " each image; use --config.data.max_tokens=0"
        )


def check_clips(
    source: Source, preprocess: Preprocessing, augment: Augmentation | None = None
) -> None:
    """Raise UserError for images where a model takes clips, or the reverse."""
    frames, there = preprocess.frames, has_clips(source.features)
    if there and not frames:
        raise UserError(
            f"{source.name} has clips, but the model takes single images; use a model of clips,"
            " such as --config.model.name=TimeSformer"
        )
    if frames and not there:
        raise UserError(
            f"{source.name} has single images, but the model takes clips of {frames} frames; use a"
            " dataset of clips, such as frames:PATH or moving:digits"
        )
    if frames and augment is not None and getattr(augment, "images_per_example", 1) != 1:
        raise UserError("several views of a clip are not made; use a model of images")


def train_features(source: Source, augment: Augmentation) -> Features:
    """Return the features of training batches, for `check_inputs`."""
    return features_after(augment.bind(source.features), source.features)


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
      bad: collects unreadable images; default: reports them on standard error.
      fast: whether the faster decoder may read them, as in training.

    Returns:
      An iterator of `{"image": uint8 (b, h, w, c), "label": int32 (b,), "mask": float32 (b,)}` in
      numpy, with further features of the source, and with equally many batches on every host.
      `mask` is 1 for an example and 0 for black images with label 0 that must not count: unreadable
      images, and the padding of the last global batch; other features are zeros there. The label
      is float32 (b, classes) for multi-label data, and missing without labels.

    Raises:
      UserError: the batch is not divisible by the number of hosts.
      DecodeError: while iterating, an image cannot be read and `bad` is strict.
    """
    bad = DecodeErrors() if bad is None else bad
    check_clips(source, preprocess)
    reader = cached(source, preprocess, fast=fast)
    stream = EvalStream(
        reader=reader,
        padding=_padding(source, preprocess, reader),
        blocks=Blocks(batch_size, process_index, process_count),
        strict=bad.strict,
    )
    return _batches(stream, source, preprocess, bad)


def _padding(source: Source, preprocess: Preprocessing, reader: Sequence[Example]) -> Example:
    """Return an example of zeros with the shapes of the others."""
    known = {"image": np.zeros(preprocess.shape, np.uint8)}
    if source.has_labels:
        known["label"] = np.zeros(len(source.class_names), np.uint8) if source.multi_label else 0
    if set(source.features) <= set(known):
        return known
    example = _first_readable(reader)
    return {
        name: known[name] if name in known else np.zeros_like(example[name])
        for name in source.features
    }


def _first_readable(reader: Sequence[Example]) -> Example:
    """Return an example, whose further features have the shapes and types of all."""
    for index in range(min(len(reader), MOST_SUBSTITUTES)):
        try:
            return reader[index]
        except DecodeError as error:
            first = error
    raise UserError(f"none of the first examples can be read; the last: {first}")


def _batches(
    stream: TrainStream | EvalStream,
    source: Source,
    preprocess: Preprocessing,
    bad: DecodeErrors,
    start_step: int = 0,
    workers: int = 0,
    views: float = 1,
) -> Iterator[Batch]:
    block = stream.blocks.batch_size // stream.blocks.process_count
    from vit_jax.data.prefetch import read_ahead  # Grain takes a second to import

    made = read_ahead(
        stream,
        start_step,
        item_bytes=math.ceil(block * views * math.prod(preprocess.shape)),
        # Threads help if they wait for a disk or a decoder; on arrays they only wait for the GIL.
        threads=1 if source.in_memory else None,
        workers=workers,
    )
    return _noting(made, bad)


def _noting(made: Iterator[Made], bad: DecodeErrors) -> Iterator[Batch]:
    """Yield the batches; add the unreadable images to `bad`."""
    try:
        for batch, unreadable in made:
            bad.add(unreadable)
            yield batch
    finally:
        made.close()
