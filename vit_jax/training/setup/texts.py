"""The tokenizer that a configuration names."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ml_collections import ConfigDict

from vit_jax.data.texts import TextOptions
from vit_jax.errors import UserError

if TYPE_CHECKING:
    from vit_jax.data.text import Tokenizer


def text_options(
    config: ConfigDict,
    tokenizer: "Tokenizer | None" = None,
    trained: Mapping[str, Any] | None = None,
) -> TextOptions:
    """Return what turns the captions of a configuration into ids.

    tokenizer: of a run that is already trained, in place of `data.tokenizer`.
    trained: fields of the text tower in `init_from`, whose tokenizer is taken if none is named.

    Raises:
        UserError: there is no such tokenizer, or it has no texts of that length.
    """
    name, length = config.data.tokenizer, config.data.text_length
    if tokenizer is None and name:
        from vit_jax.data.text import clip_tokenizer  # their library is slow to import
        from vit_jax.weights.remote.tokenizer import fetch_tokenizer

        try:
            tokenizer = clip_tokenizer() if name == "clip" else fetch_tokenizer(name)
            tokenizer = tokenizer.with_length(length or tokenizer.length)
        except UserError as error:
            raise UserError(f"data.tokenizer = {name!r}: {error}") from error
    if tokenizer is None and trained:
        tokenizer = _of_weights(config.init_from, trained.get("length"))
    return TextOptions(tokenizer, length, needed=True)


def _of_weights(source: str, length: int | None) -> "Tokenizer | None":
    """Return the tokenizer in the folder of a run, or beside a file; None without one."""
    from vit_jax.weights.remote.tokenizer import find_tokenizer
    from vit_jax.weights.resolve import place_of

    return find_tokenizer(place_of(source)[0], length)
