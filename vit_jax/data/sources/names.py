"""Names of datasets: a prefix and an argument; of those made on the spot, `NAME:COUNT:SEED`."""

from collections.abc import Callable

from vit_jax.data.sources.source import Source

Open = Callable[[str, str], Source]
"""Opens a split of a dataset."""


def argument_of(dataset: str, prefix: str) -> str | None:
    """Return what follows a prefix such as `scenes:`; None for a dataset without it."""
    return dataset.removeprefix(prefix) if dataset.startswith(prefix) else None


def parse_argument(argument: str, count: int) -> tuple[str, tuple[int, int] | None]:
    """Return the name in `NAME`, `NAME:COUNT` or `NAME:COUNT:SEED`, and the two numbers.

    Args:
      argument: as written.
      count: that of a name alone, whose seed is 0.

    Returns:
      None for the numbers unless the count is at least 1 and the seed at least 0. The seed is one
      of numpy's `RandomState`, modulo 2^32.
    """
    name, *texts = argument.split(":")
    if len(texts) > 2 or not all(text.isdecimal() for text in texts):
        return name, None
    count, seed = [*map(int, texts), *(count, 0)[len(texts) :]]
    return name, (count, seed % 2**32) if count >= 1 else None
