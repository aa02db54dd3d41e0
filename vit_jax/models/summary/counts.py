"""Tokens, parameters and MACs of every registered model at its own size, stored in `counts.csv`.

`cost` computes them, but tracing all models takes too long for a list. Tests compare the table with
`cost`. After a change of the registered models, write it again:

python -m vit_jax.models.summary.counts
"""

from functools import cache
from pathlib import Path
from typing import NamedTuple

from vit_jax.csv_files import read_csv, write_csv
from vit_jax.models import create_model, list_models
from vit_jax.models.summary.cost import cost

TABLE = Path(__file__).with_name("counts.csv")


class Counts(NamedTuple):
    """Totals of `cost` for one image."""

    tokens: int
    parameters: int
    macs: int


def counts(name: str) -> Counts:
    """Return the counts of a registered model at its own size and number of classes.

    They are read from the table; a model that is not in it, such as a user's, is traced.

    Raises:
        ValueError: there is no such name.
    """
    return table().get(name) or traced(name)


def traced(name: str) -> Counts:
    """Compute the counts by tracing."""
    found = cost(create_model(name))
    return Counts(found.tokens, found.parameters, found.macs)


@cache
def table() -> dict[str, Counts]:
    """Read the rows of `counts.csv` by name."""
    fields = Counts._fields
    return {row["model"]: Counts(*(int(row[f]) for f in fields)) for row in read_csv(TABLE)}


if __name__ == "__main__":
    write_csv(TABLE, ("model", *Counts._fields), ((name, *traced(name)) for name in list_models()))
