"""The tokenizer in a run folder, whose ids are those that the weights have learned."""

from typing import TYPE_CHECKING

from vit_jax.errors import UserError
from vit_jax.runs.run_dir import RunDir

if TYPE_CHECKING:
    from vit_jax.data.text import Tokenizer


def read_tokenizer(run: RunDir) -> "Tokenizer | None":
    """Return the tokenizer of the texts in a run's data; None if they have none.

    Raises:
      UserError: its files are damaged.
    """
    from vit_jax.data.text.tokenizer import FACTS_FILE, Tokenizer  # its library is slow to import

    # The facts are written last.
    there = (run.tokenizer / FACTS_FILE).is_file()
    return Tokenizer.load(run.tokenizer) if there else None


def keep_tokenizer(run: RunDir, tokenizer: "Tokenizer") -> None:
    """Write the tokenizer of the data into the folder of a run.

    Raises:
      UserError: the folder has another one.
    """
    own = read_tokenizer(run)
    if own is None:
        tokenizer.save(run.tokenizer)
    elif difference := own.difference(tokenizer):
        raise UserError(
            f"the tokenizer in {run.tokenizer}, to which the weights belong, is not that of the "
            f"data: {difference}; restore the old data, or choose another --workdir"
        )
