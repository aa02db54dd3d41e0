"""Moving digits: clips made on the spot, whose class is the direction of motion.

    source = open_source("moving:digits", "train")
    source[0]                                   # {"image": uint8 (8, 32, 32, 1), "label": 2}
    open_source("moving:digits:50000:1", "train")    # as many as you like, another seed

- A real digit of scikit-learn, 16 pixels large, moves left, right, up or down by 1 to 3 pixels from
  frame to frame. What leaves on one side comes in on the opposite side.
- So a digit is equally likely at every place of every frame, whatever the direction: its place, its
  form and its speed say nothing about the class, and a single frame nothing at all. Nor does the
  set of frames tell a direction from its opposite; only their order does.
- Training clips show training digits, all other clips test digits.
- A clip is a function of (split, seed, number): nothing is stored.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from vit_jax.data.features import LABEL, Example, Feature
from vit_jax.data.sources.custom import Dataset
from vit_jax.data.sources.names import Open, parse_argument
from vit_jax.data.sources.source import Source
from vit_jax.errors import UserError

PREFIX = "moving:"
FRAMES, SIDE, DIGIT = 8, 32, 16
COUNTS = {"train": 8_000, "test": 1_000}
DIRECTIONS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}  # rows, columns
SPEEDS = (1, 3)  # pixels from frame to frame, both inclusive
VERSION = "1.0"  # changes with the clips


def open_moving(argument: str, open_split: Open) -> Dataset:
    """Return the dataset of `digits`, `digits:COUNT` or `digits:COUNT:SEED`.

    Args:
      argument: COUNT is the number of training clips.
      open_split: opens the digits.

    Raises:
      UserError: there is no such dataset.
    """
    name, numbers = parse_argument(argument, COUNTS["train"])
    if name != "digits" or numbers is None:
        raise UserError(
            f"{PREFIX}{argument} cannot be read; use {PREFIX}digits, or {PREFIX}digits:COUNT:SEED"
            " with a number of training clips of at least 1 and a seed of at least 0"
        )
    count, seed = numbers
    splits = {
        split: MovingDigits(split, size, seed, functools.partial(open_split, name))
        for split, size in {**COUNTS, "train": count}.items()
    }
    return Dataset(
        splits=splits,
        features={"image": Feature("video", (FRAMES, SIDE, SIDE, 1)), "label": LABEL},
        class_names=tuple(DIRECTIONS),
        version=f"{VERSION} {seed}",
    )


@dataclasses.dataclass(frozen=True, eq=False)
class MovingDigits(Sequence[Example]):
    """Clips of a split with their directions.

    split: one of `COUNTS`. size: their number. seed: of what is drawn. open_split: opens a split
    of the digits.
    """

    split: str
    size: int
    seed: int
    open_split: Callable[[str], Source]

    @functools.cached_property
    def digits(self) -> UInt8[np.ndarray, "n 16 16"]:
        """The digits of the split, enlarged."""
        source = self.open_split("train" if self.split == "train" else "test")
        small = (Image.fromarray(source[index]["image"][..., 0]) for index in range(len(source)))
        size = (DIGIT, DIGIT)
        return np.stack([np.asarray(one.resize(size, Image.Resampling.BICUBIC)) for one in small])

    @functools.cached_property
    def labels(self) -> np.ndarray:
        """The direction of every clip: all of them equally often, in an order by chance."""
        rng = np.random.RandomState([self.seed, list(COUNTS).index(self.split)])
        return rng.permutation(np.arange(self.size) % len(DIRECTIONS))

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Example:
        # RandomState, because numpy guarantees its stream for ever.
        rng = np.random.RandomState([self.seed, list(COUNTS).index(self.split), index])
        digit = self.digits[rng.randint(len(self.digits))]
        row, column = rng.randint(SIDE, size=2)
        speed = rng.randint(SPEEDS[0], SPEEDS[1] + 1)
        label = int(self.labels[index])
        down, right = tuple(DIRECTIONS.values())[label]
        whole = np.zeros((SIDE, SIDE), np.uint8)
        whole[:DIGIT, :DIGIT] = digit
        moved = [
            np.roll(whole, (row + speed * time * down, column + speed * time * right), (0, 1))
            for time in range(FRAMES)
        ]
        return {"image": np.stack(moved)[..., None], "label": label}
