"""Samplers: the order of the examples in the endless stream of training.

A sampler has no state: `sampler[position]` takes the same time at any position and depends only on
the seed. For each position of the stream it returns

- the epoch of the position, counted in the sampler's own passes of N positions,
- the example, an index into the source,
- the copy: the number of earlier occurrences of the example in this epoch, so that every copy is
  augmented with different random numbers.
"""

import dataclasses
import functools
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Int64

from vit_jax.errors import UserError

# Uses of the random numbers of one seed; two uses must never share a stream.
FOR_ORDER, FOR_AUGMENTATION, FOR_SUBSTITUTES, FOR_CLASSES = 0, 1, 2, 3


class Position(NamedTuple):
    """Position in the stream and its example; all three fields count from 0."""

    epoch: int
    example: int
    copy: int = 0


class Order(Protocol):
    """Random access to the positions of an endless stream."""

    def __getitem__(self, position: int) -> Position: ...


@dataclasses.dataclass(frozen=True)
class ShuffledSampler:
    """Sampler of every example once in each epoch, in a new permutation for each epoch.

    Attributes:
      examples: number of examples in an epoch, at least 1.
      seed: whole number from 0 to 2**64 - 1, the seed of the permutations.

    Raises:
      UserError: an attribute is out of its range.
    """

    examples: int
    seed: int

    def __post_init__(self):
        _check(self.examples, self.seed)

    def __getitem__(self, position: int) -> Position:
        epoch, place = divmod(position, self.examples)
        return Position(epoch, int(_permutation(self.examples, self.seed, epoch)[place]))


class BalancedSampler:
    """Sampler of every class equally often in each epoch, for data with rare classes.

    An epoch has N positions, the number of examples. Each of the K classes with examples gets N / K
    positions, rounded down or up; the remaining positions rotate over the classes from epoch to
    epoch. The examples of a class are shuffled once and then taken in turn: none is repeated before
    all others were taken. So examples of a rare class occur several times in an epoch, and those of
    a frequent class are distributed over several epochs.

    Args:
      labels: the class of every example, int64 (n,).
      seed: whole number from 0 to 2**64 - 1, the seed of the permutations.

    Raises:
      UserError: there are no examples, they have several labels each, or the seed is out of range.
    """

    def __init__(self, labels: Int64[np.ndarray, " n"], seed: int):
        if labels.ndim != 1:
            raise UserError(
                "data.sampling is balanced, which needs one label per image, but images may have"
                " several; use natural"
            )
        _check(len(labels), seed)
        self.examples, self.seed = len(labels), seed
        shuffled = np.random.default_rng((FOR_CLASSES, seed)).permutation(len(labels))
        # The examples sorted by class, and the start of each class.
        self._dealt = shuffled[np.argsort(labels[shuffled], kind="stable")]
        _, self._first, self._count = np.unique(
            labels[self._dealt], return_index=True, return_counts=True
        )

    def __getitem__(self, position: int) -> Position:
        epoch, place = divmod(position, self.examples)
        start = epoch * self.examples
        draw = start + int(_permutation(self.examples, self.seed, epoch)[place])
        # Draws rotate over the classes: draw d is the (d // K)-th one of class d % K.
        classes = len(self._count)
        turn, which = divmod(draw, classes)
        count = int(self._count[which])
        turn_of_epoch = -((which - start) // classes)  # the first of this class in this epoch
        example = int(self._dealt[self._first[which] + turn % count])
        return Position(epoch, example, turn // count - turn_of_epoch // count)


@dataclasses.dataclass(frozen=True)
class RepeatedSampler:
    """Sampler that repeats every position of another sampler.

    Copies of one image in one batch, each augmented anew: Hoffer et al. (2020), "Augment Your
    Batch: Improving Generalization Through Instance Repetition"; DeiT trains with three.

    Attributes:
      order: the sampler to repeat.
      repeats: number of consecutive copies of each position, at least 1.

    Raises:
      UserError: `repeats` is out of range.
    """

    order: Order
    repeats: int

    def __post_init__(self):
        if isinstance(self.repeats, bool) or self.repeats != int(self.repeats) or self.repeats < 1:
            raise UserError(
                f"augment.repeats is {self.repeats!r}; it must be a whole number from 1 (no copies)"
            )

    def __getitem__(self, position: int) -> Position:
        position, again = divmod(position, self.repeats)
        place = self.order[position]
        return place._replace(copy=place.copy * self.repeats + again)


def _check(examples: int, seed: int) -> None:
    if examples < 1:
        raise UserError("the training split is empty; training needs at least one example")
    if not 0 <= seed < 2**64:
        raise UserError(f"seed is {seed}; it must be a whole number from 0 to 2**64 - 1")


# A batch has positions of one or two epochs, and prefetching may already be in the next ones.
@functools.lru_cache(maxsize=4)
def _permutation(examples: int, seed: int, epoch: int) -> Int64[np.ndarray, " examples"]:
    return np.random.default_rng((FOR_ORDER, seed, epoch)).permutation(examples)
