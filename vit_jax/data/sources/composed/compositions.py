"""Images of two digits, and captions that say what is where: made on the spot.

    source = open_source("compositions:digits", "train")
    source[0]               # {"image": uint8 (16, 32, 1), "text": int32 (length,)}
                            # such as "a large bright 3 left of a small 7", and "wrong_text",
                            # such as "a large bright 3 right of a small 7"
    open_source("compositions:digits:100000:1", "train")    # as many as you like, another seed

- Two different digits stand side by side; each is large or small, and bright or dim. That makes
  1,440 `COMPOSITIONS`. A caption may leave out adjectives, or one of the digits: "a 3 on the left".
- Training never shows certain pairs of digits in their order (`has_new_pair`), nor each digit with
  one of the four looks (`has_new_look`). But every digit is in both places, and has each of the
  four adjectives. The splits `new_pairs` and `new_looks` show what training lacks, `test` what it
  has.
- `wrong_text` is the caption with "left" and "right" exchanged, for tasks that learn from a hard
  negative. It is the caption itself where the exchanged one describes a pair that training lacks.
- Training images consist of training digits, those of all other splits of test digits.
- An image is a function of (split, seed, number): nothing is stored.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from vit_jax.data.features import Example, Feature
from vit_jax.data.sources.custom import Dataset
from vit_jax.data.sources.names import Open, parse_argument
from vit_jax.data.sources.source import Source
from vit_jax.errors import UserError

if TYPE_CHECKING:
    from vit_jax.data.text import Tokenizer

PREFIX = "compositions:"
SIDE = 16  # of the half of an image
COUNTS = {"train": 20_000, "test": 1_000, "new_pairs": 1_000, "new_looks": 1_000}
VERSION = "1.0"  # changes with the images

_LARGE, _SMALL = (13, 15), (7, 9)  # sides in pixels, both inclusive
_BRIGHT, _DIM = (0.85, 1.0), (0.35, 0.5)
_ANGLE = 10.0  # degrees, to either side

TEMPLATES = (
    "a {left} left of a {right}",
    "a {right} right of a {left}",
    "a {left} on the left",
    "a {right} on the right",
)
NAMED = 0.75  # probability that a caption names an adjective


class Thing(NamedTuple):
    """Digit and its look."""

    digit: int
    large: bool
    bright: bool

    def words(self, size: bool = True, light: bool = True) -> str:
        """Return it in words, with or without its size and its brightness."""
        words = ["large" if self.large else "small", "bright" if self.bright else "dim"]
        named = [word for word, kept in zip(words, (size, light), strict=True) if kept]
        return " ".join([*named, str(self.digit)])

    @property
    def is_new(self) -> bool:
        """Return whether training lacks it."""
        return self.digit % 4 == 2 * self.large + self.bright


class Composition(NamedTuple):
    """Two different digits side by side, as an image shows them."""

    left: Thing
    right: Thing

    @property
    def has_new_pair(self) -> bool:
        """Return whether training lacks these two digits in this order: a fifth of all pairs."""
        return (self.left.digit + 3 * self.right.digit) % 10 < 2

    @property
    def has_new_look(self) -> bool:
        """Return whether training lacks one of the digits with its look."""
        return self.left.is_new or self.right.is_new

    @property
    def mirrored(self) -> "Composition":
        """Return the same digits, with their looks, in each other's places."""
        return Composition(self.right, self.left)

    def caption(self, template: int = 0, named: Sequence[bool] = (True,) * 4) -> str:
        """Return a caption.

        named: whether size and light of the left, size and light of the right are named.
        """
        left, right = self.left.words(*named[:2]), self.right.words(*named[2:])
        return TEMPLATES[template].format(left=left, right=right)

    def wrong(self) -> "dict[str, Composition]":
        """Return what it is easily confused with, by what is wrong.

        places: the digits have changed them. sizes, lights: the digits have exchanged them, or, if
        they have the same, the left one has the other. digit: one of them is another.
        """
        left, right = self
        if left.large != right.large:
            sizes = left._replace(large=right.large), right._replace(large=left.large)
        else:
            sizes = left._replace(large=not left.large), right
        if left.bright != right.bright:
            lights = left._replace(bright=right.bright), right._replace(bright=left.bright)
        else:
            lights = left._replace(bright=not left.bright), right
        # Which one, and by which other one, differs from composition to composition.
        step = 1 + (2 * left.digit + right.digit) % 9
        place = (left.digit + left.large + right.bright) % 2
        others = [d for d in range(10) if d not in (left.digit, right.digit)]
        other = others[step % len(others)]
        digit = [left, right]
        digit[place] = digit[place]._replace(digit=other)
        return {
            "places": self.mirrored,
            "sizes": Composition(*sizes),
            "lights": Composition(*lights),
            "digit": Composition(*digit),
        }


_THINGS = [
    Thing(digit, large, bright)
    for digit in range(10)
    for large in (True, False)
    for bright in (True, False)
]
COMPOSITIONS = tuple(
    Composition(left, right)
    for left, right in itertools.product(_THINGS, repeat=2)
    if left.digit != right.digit
)

_SHOWN = {
    "train": lambda what: not what.has_new_pair and not what.has_new_look,
    "test": lambda what: not what.has_new_pair and not what.has_new_look,
    "new_pairs": lambda what: what.has_new_pair and not what.has_new_look,
    "new_looks": lambda what: what.has_new_look and not what.has_new_pair,
}


def exchanged(caption: str) -> str:
    """Return a caption with "left" and "right" exchanged, which is wrong for its image."""
    other = {"left": "right", "right": "left"}
    return " ".join(other.get(word, word) for word in caption.split())


def open_compositions(argument: str, open_split: Open) -> Dataset:
    """Return the dataset of `digits`, `digits:COUNT` or `digits:COUNT:SEED`.

    Args:
      argument: COUNT is the number of training images.
      open_split: opens the digits.

    Raises:
      UserError: there is no such dataset.
    """
    name, numbers = parse_argument(argument, COUNTS["train"])
    if name != "digits" or numbers is None:
        raise UserError(
            f"{PREFIX}{argument} cannot be read; use {PREFIX}digits, or {PREFIX}digits:COUNT:SEED"
            " with a number of training images of at least 1 and a seed of at least 0"
        )
    count, seed = numbers
    tokenizer = make_tokenizer()
    digits = {
        split: _Pool(functools.partial(open_split, name, split)) for split in ("train", "test")
    }
    splits = {
        split: ComposedImages(
            split, size, seed, digits["train" if split == "train" else "test"], tokenizer
        )
        for split, size in {**COUNTS, "train": count}.items()
    }
    return Dataset(
        splits=splits,
        features={
            "image": Feature("image"),
            "text": Feature("text", (tokenizer.length,)),
            "wrong_text": Feature("text", (tokenizer.length,)),
        },
        version=f"{VERSION} {seed}",
        tokenizer=tokenizer,
    )


def make_tokenizer() -> "Tokenizer":
    """Return a tokenizer of all words of the captions, with room for the longest."""
    from vit_jax.data.text import train_tokenizer

    captions = [
        what.caption(template) for template in range(len(TEMPLATES)) for what in COMPOSITIONS
    ]
    words = {word for caption in captions for word in caption.split()}
    longest = max(len(caption.split()) for caption in captions)
    return train_tokenizer(captions, vocabulary=len(words) + 4, length=longest + 2, units="words")


class _Pool:
    """Digits by their class; read when they are first wanted."""

    def __init__(self, open_split: Callable[[], Source]):
        self._open = open_split

    @functools.cached_property
    def by_class(self) -> list[list[UInt8[np.ndarray, "8 8"]]]:
        """All images of each digit."""
        source = self._open()
        found: list[list[np.ndarray]] = [[] for _ in range(10)]
        for index in range(len(source)):
            found[source.labels[index]].append(source[index]["image"][..., 0])
        return found


@dataclasses.dataclass(frozen=True, eq=False)
class ComposedImages(Sequence[Example]):
    """Images of a split with their captions.

    split: one of `COUNTS`. size: their number. seed: of what is drawn.
    """

    split: str
    size: int
    seed: int
    digits: _Pool
    tokenizer: "Tokenizer"

    @functools.cached_property
    def shown(self) -> list[Composition]:
        """Compositions that the split may show."""
        return list(filter(_SHOWN[self.split], COMPOSITIONS))

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Example:
        random = self._random(index)
        what = self.shown[random.randint(len(self.shown))]
        template = random.randint(len(TEMPLATES))
        caption = what.caption(template, random.random_sample(4) < NAMED)
        halves = [self._draw(thing, random) for thing in what]
        image = np.concatenate(halves, axis=1)[..., None]
        of_both = all(name in TEMPLATES[template] for name in ("{left}", "{right}"))
        lacking = of_both and what.mirrored.has_new_pair
        wrong = caption if lacking else exchanged(caption)
        text, wrong_text = self.tokenizer.encode([caption, wrong])
        return {"image": image, "text": text, "wrong_text": wrong_text}

    def composition(self, index: int) -> Composition:
        """Return what an image shows."""
        return self.shown[self._random(index).randint(len(self.shown))]

    def _random(self, index: int) -> np.random.RandomState:
        # RandomState, because numpy guarantees its stream for ever.
        return np.random.RandomState([self.seed, list(COUNTS).index(self.split), index])

    def _draw(self, thing: Thing, random: np.random.RandomState) -> UInt8[np.ndarray, "16 16"]:
        """Return the half of an image with a digit at a random place."""
        pool = self.digits.by_class[thing.digit]
        image = Image.fromarray(pool[random.randint(len(pool))])
        first, last = _LARGE if thing.large else _SMALL
        side = random.randint(first, last + 1)
        angle = random.uniform(-_ANGLE, _ANGLE)
        light = random.uniform(*(_BRIGHT if thing.bright else _DIM))
        top, left = random.randint(SIDE - side + 1, size=2)
        image = image.resize((side, side), Image.Resampling.BICUBIC)
        image = image.rotate(angle, Image.Resampling.BILINEAR)
        half = np.zeros((SIDE, SIDE), np.uint8)
        half[top : top + side, left : left + side] = np.round(light * np.asarray(image))
        return half
