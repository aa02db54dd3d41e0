"""Names of the decoder of masked autoencoders: of the authors' files, and of Hugging Face's.

Blocks have the names of the encoder's blocks behind another beginning. transformers has written
two of them, `decoder.decoder_layers` in published files and `decoder.decoder_encoder.layer`; both
are read, the first is written.
"""

import dataclasses
import re

from vit_jax.models.vit.weights import hugging_face, timm
from vit_jax.weights.mapping import SAME, Row, Tensors, layer_norm, linear


def _blocks(rows: tuple[Row, ...], old: str, new: str) -> tuple[Row, ...]:
    """Return the rows of blocks with another beginning of their names."""

    def renamed(theirs: str | tuple[str, ...]) -> str | tuple[str, ...]:
        names = (theirs,) if isinstance(theirs, str) else theirs
        changed = tuple(new + name.removeprefix(old) for name in names)
        return changed[0] if isinstance(theirs, str) else changed

    of_blocks = (row for row in rows if row.ours.startswith("blocks_{i}/"))
    return tuple(dataclasses.replace(row, theirs=renamed(row.theirs)) for row in of_blocks)


def _outside(beginning: str) -> tuple[Row, ...]:
    return (
        *linear("embed", f"{beginning}decoder_embed"),
        Row("mask_token", f"{beginning}mask_token", SAME),
        *layer_norm("norm", f"{beginning}decoder_norm"),
        *linear("pred", f"{beginning}decoder_pred"),
    )


# By the name of the format of the encoder.
ROWS = {
    "timm": (*_outside(""), *_blocks(timm.ROWS, "blocks.{i}.", "decoder_blocks.{i}.")),
    "huggingface": (
        *_outside("decoder."),
        *_blocks(hugging_face.ROWS, "encoder.layer.{i}.", "decoder.decoder_layers.{i}."),
    ),
}

# The fixed table of positions, which has a row of zeros for the class token.
TABLES = {"timm": "decoder_pos_embed", "huggingface": "decoder.decoder_pos_embed"}
BEGINNINGS = {"timm": "", "huggingface": "decoder."}


def normalize_names(tensors: Tensors) -> Tensors:
    """Return the tensors of a decoder by the names of published files."""
    old, new = r"^decoder\.decoder_encoder\.layer\.", "decoder.decoder_layers."
    return {re.sub(old, new, name): array for name, array in tensors.items()}
