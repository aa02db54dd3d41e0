"""Space of a sweep: values or ranges of configuration keys.

    parse_space(["optimizer.learning_rate=1e-4..1e-2:log", "seed=0,1,2"])

Values stay texts, which mean the same as on the command line of `train`.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vit_jax.config.schema import KEYS, is_free
from vit_jax.config.values import Integer, Number
from vit_jax.errors import UserError, shown
from vit_jax.studies.finished import NO_SETTINGS

SEED = "seed"

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(:log)?")
_WHOLE = re.compile(r"[+-]?\d+")
_DRAWS = 1000  # in search of a setting that was not drawn before
# Keys that a sweep sets itself.
_OWN = ("data.validation", "data.test", "resume")


@dataclass(frozen=True)
class Values:
    """Values of a key, as texts."""

    texts: tuple[str, ...]

    def __str__(self) -> str:
        return ",".join(self.texts)

    @property
    def tried(self) -> tuple[str, ...]:
        """Return the values with which a configuration is checked before anything runs."""
        return self.texts

    def draw(self, rng: np.random.Generator) -> str:
        """Return one of the values."""
        return self.texts[rng.integers(len(self.texts))]


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, the ends included.

    log: whether their logarithms are drawn evenly. whole: whether they are whole numbers.
    """

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def __str__(self) -> str:
        return f"{self.text(self.low)}..{self.text(self.high)}{':log' * self.log}"

    @property
    def tried(self) -> tuple[str, ...]:
        """Return the values with which a configuration is checked before anything runs."""
        return self.text(self.low), self.text(self.high)

    def draw(self, rng: np.random.Generator) -> str:
        """Return a number of the range, as text."""
        low, high = (self.low - 0.5, self.high + 0.5) if self.whole else (self.low, self.high)
        low = max(low, self.low / 2) if self.log else low
        if self.log:
            return self.text(math.exp(rng.uniform(math.log(low), math.log(high))))
        return self.text(rng.uniform(low, high))

    def text(self, value: float) -> str:
        """Return a number with four digits, which is still in the range."""
        value = min(max(value, self.low), self.high)
        if self.whole:
            return str(round(value))
        rounded = f"{value:.4g}"
        return rounded if self.low <= float(rounded) <= self.high else repr(float(value))


Space = Mapping[str, Values | Range]


def parse_space(over: Sequence[str]) -> dict[str, Values | Range]:
    """Return the space of texts such as `KEY=A,B` and `KEY=LOW..HIGH:log`, in their order.

    A comma inside brackets or quotes separates no values.

    Raises:
        UserError: a text has another form, a key is given twice or influences no result.
    """
    space: dict[str, Values | Range] = {}
    for text in over:
        key, equals, values = text.partition("=")
        key = key.strip().removeprefix("--").removeprefix("config.")
        if not equals or not key or not values.strip():
            raise UserError(
                f"--over {text} is invalid; use KEY=VALUE,VALUE,... or KEY=LOW..HIGH, such as "
                "--over optimizer.learning_rate=1e-3,3e-3 or optimizer.learning_rate=1e-4..1e-2:log"
            )
        if key in space:
            raise UserError(f"--over {key} is given twice; list all its values in one")
        _check_key(key)
        space[key] = _parse(key, values.strip())
    return space


def _check_key(key: str) -> None:
    if key in _OWN:
        raise UserError(
            f"--over {key} is not possible: a sweep trains on the training images, chooses on the "
            "validation images and looks at the test images once; sweep over another key"
        )
    if is_free(key) or (key in NO_SETTINGS and key != SEED):
        raise UserError(f"--over {key}: this key does not influence the result; sweep over another")


def _parse(key: str, text: str) -> Values | Range:
    found = _RANGE.fullmatch(text)
    if not found:
        texts = tuple(_separated(text))
        if "" in texts:
            raise UserError(f"--over {key}={text} has an empty value; remove the spare comma")
        if twice := [one for one in texts if texts.count(one) > 1]:
            raise UserError(f"--over {key}={text} has {twice[0]} twice; list each value once")
        return Values(texts)
    allowed = KEYS[key].allowed if key in KEYS else None
    if allowed is not None and not isinstance(allowed, Number | Integer):
        raise UserError(
            f"--over {key}={text}: this key takes {allowed.describe()}; list its values, separated "
            "by commas"
        )
    low, high, log = float(found[1]), float(found[2]), bool(found[3])
    if not low < high:
        raise UserError(f"--over {key}={text} is empty; use LOW..HIGH with LOW below HIGH")
    if log and low <= 0:
        raise UserError(f"--over {key}={text}: a logarithmic range starts above 0, not at {low:g}")
    whole = bool(_WHOLE.fullmatch(found[1]) and _WHOLE.fullmatch(found[2]))
    return Range(low, high, log, whole and not isinstance(allowed, Number))


def _separated(text: str) -> Iterator[str]:
    """Yield the parts between commas that are not inside brackets or quotes."""
    part, depth, quote = "", 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        depth += (letter in "([{") - (letter in ")]}") if not quote else 0
        if letter == "," and not depth and not quote:
            yield _bare(part)
            part = ""
        else:
            part += letter
    yield _bare(part)


def _bare(part: str) -> str:
    part = part.strip()
    quoted = len(part) > 1 and part[0] == part[-1] and part[0] in "\"'"
    return part[1:-1] if quoted else part


def seeds_of(space: Space) -> tuple[str, ...]:
    """Return the seeds with which every setting is trained; empty: that of the configuration."""
    seeds = space.get(SEED, Values(()))
    if isinstance(seeds, Range):
        raise UserError(f"--over seed={seeds} is a range; list the seeds, such as seed=0,1,2")
    return seeds.texts


def grid(space: Space) -> list[dict[str, str]]:
    """Return all settings of a space of values, the last key changing fastest, without the seed.

    Raises:
        UserError: a key has a range.
    """
    found: list[dict[str, str]] = [{}]
    for key, values in space.items():
        if key == SEED:
            continue
        if isinstance(values, Range):
            raise UserError(
                f"--over {key}={values} is a range, and a grid needs values: {key}=A,B,C; or draw "
                "from it with --sampler=random --trials=N"
            )
        found = [{**setting, key: text} for setting in found for text in values.texts]
    return found


def drawn(space: Space, seed: int, count: int) -> list[dict[str, str]]:
    """Return different random settings, without the seed; the first ones of a larger number.

    Raises:
        UserError: the space has fewer settings.
    """
    rng = np.random.default_rng(seed)
    found: list[dict[str, str]] = []
    for _ in range(count):
        for _ in range(_DRAWS):
            setting = {key: values.draw(rng) for key, values in space.items() if key != SEED}
            if setting not in found:
                break
        else:
            raise UserError(
                f"--trials={count} is more than the settings of the space, {len(found)}; use "
                "--sampler=grid for all of them"
            )
        found.append(setting)
    return found


def in_words(settings: Mapping[str, str]) -> str:
    """Return settings in one line."""
    return ", ".join(f"{key}={value}" for key, value in settings.items()) or shown("defaults")
