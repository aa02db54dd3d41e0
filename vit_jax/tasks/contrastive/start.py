"""Towers that are trained already: what they ask of the configuration and of the data."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vit_jax.errors import UserError
from vit_jax.runs import RunDir
from vit_jax.runs.tokenizer import read_tokenizer
from vit_jax.weights.of_tasks.task_weights import TaskWeights

if TYPE_CHECKING:
    from vit_jax.data.text import Tokenizer

_ALONE = "--config.objective.start_text=false, which takes the image tower alone"


def read_both(source: str) -> TaskWeights | None:
    """Return both towers of a run, a file or an address; None where there is only one.

    Raises:
        UserError: they cannot be read.
    """
    # These imports take long, and most runs begin untrained.
    from vit_jax.weights.of_tasks.two_towers import has_two_towers, read_two_towers
    from vit_jax.weights.remote.hub import fetch
    from vit_jax.weights.resolve import place_of

    place, hints = place_of(source)
    path = fetch(place)
    return read_two_towers(path, hints) if has_two_towers(path) else None


def check_start(
    trained: Mapping[str, Any], fields: Mapping[str, Any], tokenizer: "Tokenizer", source: str
) -> dict[str, int]:
    """Return the fields `vocabulary` and `length` of a task.

    Args:
        trained: the fields of trained towers; empty for a new text tower.
        fields: those that the configuration sets.
        tokenizer: of the data.
        source: the name of the weights.

    Raises:
        UserError: the configuration or the tokenizer contradicts the text tower of the weights.
    """
    from vit_jax.data.text.tokenizer import MOST_SPARE_ROWS

    where = f"init_from = {source!r}"
    sizes = {"vocabulary": tokenizer.vocabulary, "length": tokenizer.length}
    if "vocabulary" not in trained:
        return sizes
    for name, value in fields.items():
        if name in trained and name != "kind" and trained[name] != value:
            raise UserError(
                f"objective.{name} = {value!r}, but the towers of {where} have {trained[name]!r}; "
                f"omit it, or use {_ALONE}"
            )
    vocabulary, length = trained["vocabulary"], trained["length"]
    if not 0 <= vocabulary - tokenizer.vocabulary <= MOST_SPARE_ROWS:
        raise UserError(
            f"{where}: its text tower has a vocabulary of {vocabulary:,}, but the tokenizer of the "
            f"data has {tokenizer.vocabulary:,}, so it does not belong to these weights; name "
            f"theirs with --config.data.tokenizer, or use {_ALONE}"
        )
    # A table of a file may have spare rows, so a smaller vocabulary alone would not be noticed.
    own = read_tokenizer(run) if (run := RunDir(source)).is_run() else None
    if own and (difference := own.with_length(tokenizer.length).difference(tokenizer)):
        raise UserError(
            f"{where}: the tokenizer of the data is not that of its text tower: {difference}; omit "
            f"data.tokenizer to use that of the run, or use {_ALONE}"
        )
    end = trained.get("text_end_token")
    if end not in (None, tokenizer.facts.end):
        raise UserError(
            f"{where}: its text tower looks for the end of a text at the id {end}, but the "
            f"tokenizer of the data ends it with {tokenizer.facts.end}, so it does not belong to "
            f"these weights; name theirs with --config.data.tokenizer, or use {_ALONE}"
        )
    longest_only = trained.get("text_pool", "end") != "end"  # it pools the last place
    if tokenizer.length > length or (longest_only and tokenizer.length != length):
        raise UserError(
            f"{where}: its text tower takes texts of {length} tokens, but those of the data have "
            f"{tokenizer.length}; use --config.data.text_length={length}"
        )
    return {**sizes, "vocabulary": vocabulary}
