"""Evolution of subnets: random ones first, then mutations and crossovers of the best so far.

What is proposed is a function of the seed and of the results of earlier generations, so that a
search that was killed proposes the same subnets again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vit_jax.models.supernet.space import SearchSpace, Subnet

_TRIES = 200  # for each subnet that is wanted, as the authors give up after some


@dataclass(frozen=True)
class Evolution:
    """Settings of the evolution; the defaults are those of the authors' code, `evolution.py`.

    population: subnets of a generation: half of it mutations, half crossovers.
    parents: number of the best subnets so far that the next generation is made from.
    resize: probability that a mutation changes the width, and that it changes the depth.
    change: probability that it changes the heads of a block, and its MLP ratio.
    """

    population: int = 50
    parents: int = 10
    resize: float = 0.4
    change: float = 0.2

    def propose(
        self,
        space: SearchSpace,
        fits: Callable[[Subnet], bool],
        earlier: Sequence[Subnet],
        best: Sequence[Subnet],
        rng: np.random.Generator,
    ) -> list[Subnet]:
        """Return the subnets of a generation, different from each other and from earlier ones.

        There are fewer than `population` only if no more were found.

        Args:
            fits: whether a subnet keeps the budget.
            earlier: all subnets of earlier generations.
            best: the parents, best first; empty in the first generation.
            rng: of this generation.
        """
        seen, found = set(earlier), []

        def add(make: Callable[[], Subnet | None], wanted: int) -> None:
            until = len(found) + wanted
            for _ in range(_TRIES * wanted):
                if len(found) >= until:
                    return
                subnet = make()
                if subnet is None or subnet in seen or not fits(subnet):
                    continue
                seen.add(subnet)
                found.append(subnet)

        if best:
            add(lambda: self.mutate(space, _one_of(best, rng), rng), self.population // 2)
            add(
                lambda: cross(space, _one_of(best, rng), _one_of(best, rng), rng),
                self.population // 2,
            )
        add(lambda: space.random(rng), self.population - len(found))
        if not seen:  # a budget that hardly any subnet keeps; evolution begins with the smallest
            add(lambda: space.smallest if space.smallest in space else None, 1)
        return found

    def mutate(self, space: SearchSpace, subnet: Subnet, rng: np.random.Generator) -> Subnet | None:
        """Return a changed subnet; None if it has left the space.

        Blocks that are added are random, as in the authors' `get_mutation`.
        """
        width, depth = subnet.width, subnet.depth
        if rng.random() < self.resize:
            width = int(rng.choice(space.widths))
        if rng.random() < self.resize:
            depth = int(rng.choice(space.depths))
        valid = space.heads_of(width)
        if not valid:
            return None
        number = depth if space.per_block else 1  # of blocks that are independent
        mutated = Subnet(
            width,
            *(
                self._changed(old[:number], new[:number], rng) * (depth // number)
                for old, new in zip(
                    (subnet.heads, subnet.mlp_ratios),
                    space.random_blocks(width, depth, rng),
                    strict=True,
                )
            ),
            subnet.patch_size,
        )
        return mutated if mutated in space else None

    def _changed(self, old: tuple, new: tuple, rng: np.random.Generator) -> tuple:
        """Return new values for some of the blocks, and for those that the old ones lack."""
        taken = rng.random(len(new)) < self.change
        taken[len(old) :] = True
        return tuple(new[i] if taken[i] else old[i] for i in range(len(new)))


def cross(
    space: SearchSpace, one: Subnet, other: Subnet, rng: np.random.Generator
) -> Subnet | None:
    """Return a subnet with each size of one of two parents; None if their depths differ."""
    if one.depth != other.depth:
        return None
    width, patch = (
        _one_of((getattr(one, name), getattr(other, name)), rng) for name in ("width", "patch_size")
    )
    number = one.depth if space.per_block else 1
    heads, ratios = (
        tuple(_one_of(pair, rng) for pair in zip(*each, strict=True)) * (one.depth // number)
        for each in (
            (one.heads[:number], other.heads[:number]),
            (one.mlp_ratios[:number], other.mlp_ratios[:number]),
        )
    )
    crossed = Subnet(width, heads, ratios, patch)
    return crossed if crossed in space else None


def _one_of(values: Sequence[Any], rng: np.random.Generator) -> Any:
    return values[rng.integers(len(values))]
