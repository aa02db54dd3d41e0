"""Search spaces: the sizes that a subnet may have, their number, and random choices among them.

SPACES["AutoFormer-T"].count()  # 1_056_964_608
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from vit_jax.errors import shown
from vit_jax.models.fields import LARGEST_COUNT, MOST_BLOCKS, check_count, check_positive


class Sizes(NamedTuple):
    """Sizes of a subnet as numbers that a compiled program takes, so that one serves for all.

    width and depth are scalars; heads and mlp_width have an entry for every block of the supernet,
    0 for the blocks that the subnet leaves out.
    """

    width: Int[Array, ""]
    depth: Int[Array, ""]
    heads: Int[Array, " blocks"]
    mlp_width: Int[Array, " blocks"]


@dataclass(frozen=True)
class Subnet:
    """Subnet of a supernet: its first blocks, and in each the first channels, heads and so on.

    width: of a token. heads, mlp_ratios: one number for each block. patch_size: None: that of the
    supernet.
    """

    width: int
    heads: tuple[int, ...]
    mlp_ratios: tuple[float, ...]
    patch_size: int | None = None

    @property
    def depth(self) -> int:
        """Number of blocks."""
        return len(self.heads)

    @property
    def mlp_widths(self) -> tuple[int, ...]:
        """Width of the hidden layer of each block's MLP."""
        return tuple(int(self.width * ratio) for ratio in self.mlp_ratios)

    def fields(self) -> dict[str, Any]:
        """Return the fields of a ViT of these sizes."""
        patch = {} if self.patch_size is None else {"patch_size": self.patch_size}
        sizes = {"width": self.width, "depth": self.depth, "heads": self.heads}
        return {**sizes, "mlp_width": self.mlp_widths, **patch}

    def sizes(self, blocks: int) -> Sizes:
        """Return the sizes for a supernet with so many blocks."""
        left_out = (0,) * (blocks - self.depth)
        each = (
            np.array((*values, *left_out), np.int32) for values in (self.heads, self.mlp_widths)
        )
        return Sizes(np.int32(self.width), np.int32(self.depth), *each)

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of JSON values."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @classmethod
    def from_json(cls, sizes: Mapping[str, Any]) -> "Subnet":
        """Return the subnet of a `to_json`."""
        each = {name: tuple(sizes[name]) for name in ("heads", "mlp_ratios")}
        return cls(**{**sizes, **each})

    def __str__(self) -> str:
        heads, ratios = (" ".join(f"{x:g}" for x in each) for each in (self.heads, self.mlp_ratios))
        patch = "" if self.patch_size is None else f", patch size {self.patch_size}"
        return f"width {self.width}, {self.depth} blocks, heads {heads}, MLP ratios {ratios}{patch}"


@dataclass(frozen=True)
class SearchSpace:
    """Search space: the values of each size, of which a subnet has any combination that is valid.

    per_block: whether every block has its own heads and MLP ratio; else all of a subnet are equal.
    head_dim: channels of a head, with which any number of heads goes with any width; None: width /
        heads, so that the heads must divide the width.
    patch_sizes: values for subnets that share no weights; empty: that of the model.
    image_size: pixels of a side, which the patch must divide; None: that is not checked.

    Raises:
        ValueError: a size without values, or with invalid ones.
    """

    depths: tuple[int, ...]
    widths: tuple[int, ...]
    heads: tuple[int, ...]
    mlp_ratios: tuple[float, ...]
    per_block: bool = True
    head_dim: int | None = None
    patch_sizes: tuple[int, ...] = ()
    image_size: int | None = None

    def __post_init__(self):
        most = {"depths": MOST_BLOCKS}
        for name in ("depths", "widths", "heads", "mlp_ratios", "patch_sizes"):
            values = tuple(getattr(self, name))
            if not values and name != "patch_sizes":
                raise ValueError(f"SearchSpace: {name} has no values; name one or more sizes.")
            for value in values:
                if name == "mlp_ratios":
                    check_positive("SearchSpace", name, value)
                else:
                    check_count("SearchSpace", name, value, most=most.get(name, LARGEST_COUNT))
            if len(set(values)) < len(values):
                raise ValueError(f"SearchSpace: {name}={shown(values)} has a value twice.")
            object.__setattr__(self, name, tuple(sorted(values)))
        if not self.count():
            raise ValueError(
                "SearchSpace: no combination is valid: heads must divide the width, unless "
                "head_dim is set, and patches the image_size."
            )

    @property
    def combinations(self) -> int:
        """Number of combinations of the values, valid or not."""
        patches = max(1, len(self.patch_sizes))
        return patches * len(self.widths) * self._blocks(len(self.heads))

    def count(self) -> int:
        """Return the number of subnets."""
        widths = (self._blocks(len(self.heads_of(width))) for width in self.widths)
        return len(self._valid_patches()) * sum(widths)

    def heads_of(self, width: int) -> tuple[int, ...]:
        """Return the numbers of heads that are valid for a width."""
        return tuple(h for h in self.heads if self.head_dim is not None or width % h == 0)

    def __iter__(self) -> Iterator[Subnet]:
        """Yield every subnet of a space without sizes for each block."""
        if self.per_block:
            raise ValueError(
                f"SearchSpace: {self.count():,} subnets with sizes for each block are too many to "
                "list; use random, or per_block=False."
            )
        sizes = itertools.product(
            self._valid_patches(), self.depths, self.widths, self.heads, self.mlp_ratios
        )
        for patch, depth, width, heads, ratio in sizes:
            if heads in self.heads_of(width):
                yield Subnet(width, (heads,) * depth, (ratio,) * depth, patch)

    def __contains__(self, subnet: Subnet) -> bool:
        equal = self.per_block or len({*zip(subnet.heads, subnet.mlp_ratios, strict=True)}) == 1
        valid = self.heads_of(subnet.width)
        return (
            equal
            and subnet.width in self.widths
            and subnet.depth in self.depths
            and all(heads in valid for heads in subnet.heads)
            and all(ratio in self.mlp_ratios for ratio in subnet.mlp_ratios)
            and subnet.patch_size in self._valid_patches()
        )

    @property
    def largest(self) -> Subnet:
        """The subnet with the largest value of each size."""
        return self._extreme(-1)

    @property
    def smallest(self) -> Subnet:
        """The subnet with the smallest value of each size."""
        return self._extreme(0)

    def random(self, rng: np.random.Generator) -> Subnet:
        """Return a subnet with a uniform choice of each size."""
        patches, widths = self._valid_patches(), [w for w in self.widths if self.heads_of(w)]
        width, depth = (int(rng.choice(values)) for values in (widths, self.depths))
        patch = patches[rng.integers(len(patches))]
        return Subnet(width, *self.random_blocks(width, depth, rng), patch)

    def random_blocks(
        self, width: int, depth: int, rng: np.random.Generator
    ) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Return random heads and MLP ratios of so many blocks."""
        number, repeats = (depth, 1) if self.per_block else (1, depth)
        heads = rng.choice(self.heads_of(width), number).tolist()
        return tuple(heads) * repeats, tuple(rng.choice(self.mlp_ratios, number).tolist()) * repeats

    def draw(self, key: Array, blocks: int) -> Sizes:
        """Return the sizes of a random subnet, with a uniform choice of each, in a program.

        For a space with a `head_dim`, in which any heads go with any width.

        Args:
            key: of the random numbers; equal keys give equal subnets on every device and host.
            blocks: of the supernet.

        Source: AutoFormer (Chen et al. 2021), `sample_configs` in its repository.
        """
        keys = dict(
            zip(("width", "depth", "heads", "ratio"), jax.random.split(key, 4), strict=True)
        )
        width = jax.random.choice(keys["width"], jnp.array(self.widths))
        depth = jax.random.choice(keys["depth"], jnp.array(self.depths))
        shape = (blocks,) if self.per_block else (1,)
        heads = jax.random.choice(keys["heads"], jnp.array(self.heads), shape)
        number = jax.random.choice(keys["ratio"], len(self.mlp_ratios), shape)
        # Of a table, so that they are rounded as in `Subnet`.
        hidden = [[int(w * ratio) for ratio in self.mlp_ratios] for w in self.widths]
        mlp_width = jnp.array(hidden)[jnp.searchsorted(jnp.array(self.widths), width), number]
        there = jnp.arange(blocks) < depth
        return Sizes(width, depth, jnp.where(there, heads, 0), jnp.where(there, mlp_width, 0))

    def _blocks(self, heads: int) -> int:
        """Return the number of choices of the depth and of all blocks."""
        of_one = heads * len(self.mlp_ratios)
        return sum(of_one ** (depth if self.per_block else 1) for depth in self.depths)

    def _valid_patches(self) -> tuple[int | None, ...]:
        if not self.patch_sizes:
            return (None,)
        side = self.image_size
        return tuple(patch for patch in self.patch_sizes if side is None or side % patch == 0)

    def _extreme(self, end: int) -> Subnet:
        width = [w for w in self.widths if self.heads_of(w)][end]
        depth = self.depths[end]
        heads, ratio = self.heads_of(width)[end], self.mlp_ratios[end]
        patch = self._valid_patches()[::-1][end]  # small patches are many
        return Subnet(width, (heads,) * depth, (ratio,) * depth, patch)


def _autoformer(widths: tuple[int, ...], heads: tuple[int, ...], ratios, depths) -> SearchSpace:
    return SearchSpace(depths, widths, heads, ratios, head_dim=64)


SPACES: Mapping[str, SearchSpace] = {
    # Chen et al. 2021, "AutoFormer: Searching Transformers for Visual Recognition": the files
    # experiments/supernet of its repository.
    "AutoFormer-T": _autoformer((192, 216, 240), (3, 4), (3.5, 4.0), (12, 13, 14)),
    "AutoFormer-S": _autoformer((320, 384, 448), (5, 6, 7), (3.0, 3.5, 4.0), (12, 13, 14)),
    "AutoFormer-B": _autoformer((528, 576, 624), (9, 10), (3.0, 3.5, 4.0), (14, 15, 16)),
    # Equal blocks between the sizes of ViT-S and ViT-B, with patches of several sizes.
    "uniform": SearchSpace(
        (12, 14, 16, 18),
        (384, 512, 640, 768),
        (6, 8, 10, 12),
        (3.0, 3.5, 4.0),
        per_block=False,
        patch_sizes=(14, 16, 18),
        image_size=224,
    ),
}
"""Search spaces by name."""
