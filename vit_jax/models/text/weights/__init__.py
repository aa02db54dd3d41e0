"""Weights of text towers, and of what joins them with an image tower, in files with both.

    found = towers_of(tensors)            # a `Towers`: its format, and the tensors of each part
    options = found.format.describe(found.rest, config, hints, image)

`options` are fields of the task `contrastive`. The tables are of everything but the image tower,
with paths such as `text/blocks_{i}/norm1/scale`, `projection/kernel` and `logits/scale`.
"""

from vit_jax.models.text.weights import big_vision, hugging_face, openai
from vit_jax.models.text.weights.common import Options, Towers, TowersFormat
from vit_jax.weights.mapping import Tensors

__all__ = ["TOWER_FORMATS", "Options", "Towers", "TowersFormat", "towers_of"]

TOWER_FORMATS = (*hugging_face.FORMATS, *openai.FORMATS, *big_vision.FORMATS)


def towers_of(tensors: Tensors) -> Towers | None:
    """Return the parts of a file with an image and a text tower; None for other files."""
    for one in TOWER_FORMATS:
        if (parts := one.split(tensors)) is not None:
            return Towers(one, *parts)
    return None
