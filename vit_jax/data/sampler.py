"""Samplers: the order of the examples in the endless stream of training.

An order is arithmetic, not state: `order[position]` costs the same at any position and hangs on
nothing but the seed. Every order names, for each position of the stream,

- the epoch of the position, counted in the order's own passes of N positions,
- the example, an index into the source,
- the copy: how often the example has been there in this epoch before, so that every copy is
  augmented with random numbers of its own.
"""

import dataclasses
import functools
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Int64

from vit_jax.errors import UserError

# What the random numbers of one seed are for; two uses must never share a stream.
FOR_ORDER, FOR_AUGMENTATION, FOR_SUBSTITUTES, FOR_CLASSES = 0, 1, 2, 3


class Position(NamedTuple):
    """Position in the stream and its example; all three fields count from 0."""

    epoch: int
    example: int
    copy: int = 0


class Order(Protocol):
    """Random access to the places of an endless stream."""

    def __getitem__(self, position: int) -> Position: ...


@dataclasses.dataclass(frozen=True)
class ShuffledSampler:
    """Every example once in each epoch, in a permutation of the epoch's own.

    Attributes:
      examples: number of examples in an epoch, at least 1.
      seed: whole number from 0 to 2**64 - 1; another seed is another order.

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
    """Every class equally often in each epoch, for data where some classes are rare.

    An epoch has as many positions as there are examples, N. Of the K classes with examples, each
    gets N / K of them, rounded down or up, the spare ones going round from epoch to epoch. A class
    deals its examples out like a pack of cards that was shuffled once: none comes again before all
    the others have come. So a rare class comes several times in an epoch, and a frequent one needs
    several epochs to show all its examples.

    Args:
      labels: the class of every example, int64 (n,).
      seed: whole number from 0 to 2**64 - 1; another seed is another order.

    Raises:
      UserError: there are no examples, they have several labels each, or the seed is out of range.
    """

    def __init__(self, labels: Int64[np.ndarray, " n"], seed: int):
        if labels.ndim != 1:
            raise UserError(
                "data.sampling is balanced, but images with several labels belong to no single"
                " class to balance by; legal is natural"
            )
        _check(len(labels), seed)
        self.examples, self.seed = len(labels), seed
        shuffled = np.random.default_rng((FOR_CLASSES, seed)).permutation(len(labels))
        # The examples class by class, and where each class begins.
        self._dealt = shuffled[np.argsort(labels[shuffled], kind="stable")]
        _, self._first, self._count = np.unique(
            labels[self._dealt], return_index=True, return_counts=True
        )

    def __getitem__(self, position: int) -> Position:
        epoch, place = divmod(position, self.examples)
        start = epoch * self.examples
        draw = start + int(_permutation(self.examples, self.seed, epoch)[place])
        # Draws go round the classes: draw d is the (d // K)-th one of class d % K.
        classes = len(self._count)
        turn, which = divmod(draw, classes)
        count = int(self._count[which])
        turn_of_epoch = -((which - start) // classes)  # the first of this class in this epoch
        example = int(self._dealt[self._first[which] + turn % count])
        return Position(epoch, example, turn // count - turn_of_epoch // count)


@dataclasses.dataclass(frozen=True)
class RepeatedSampler:
    """Another order, every position of it several times in a row.

    Copies of one image in one batch, each augmented anew: Hoffer et al. (2020), "Augment Your
    Batch: Improving Generalization Through Instance Repetition"; DeiT trains with three.

    Attributes:
      order: what is repeated.
      repeats: how often each of its positions comes, at least 1.

    Raises:
      UserError: `repeats` is no such number.
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


# A batch lies in one or two epochs, and reading ahead may already be in the next ones.
@functools.lru_cache(maxsize=4)
def _permutation(examples: int, seed: int, epoch: int) -> Int64[np.ndarray, " examples"]:
    return np.random.default_rng((FOR_ORDER, seed, epoch)).permutation(examples)
