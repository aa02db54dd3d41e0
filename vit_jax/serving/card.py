"""Model card: what a client may know of a model. It holds no path of the server."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from vit_jax.inference.predictor import Predictor
from vit_jax.models.quantized import dequantized
from vit_jax.models.summary.cost import macs_of
from vit_jax.serving.answers import has_attention
from vit_jax.serving.limits import Limits

_WORD = re.compile(r"[^\s,()]+")


def model_card(
    predictor: Predictor, about: Mapping[str, Any], limits: Limits, sizes: Sequence[int]
) -> dict[str, Any]:
    """Return name, classes, inputs and outputs, origin and cost of a model as values of JSON.

    Args:
        predictor: of the model.
        about: `name`, `task`, `origin` and `versions`, as of a model record.
        limits: of requests.
        sizes: of batches.
    """
    return {
        "name": about["name"],
        "task": about["task"],
        "predictor": type(predictor).__name__,
        "classes": list(predictor.class_names),
        **predictor.describe(),
        "origin": without_folders(about["origin"]),
        "step": predictor.step,
        "versions": dict(about["versions"]),
        "cost": _cost(predictor),
        "attention": has_attention(predictor),
        "files": predictor.files,
        "batch_sizes": list(sizes),
        "limits": {
            "bytes": limits.body_bytes,
            "pixels": limits.pixels,
            "images": limits.images,
        },
    }


def without_folders(text: str) -> str:
    """Return a text in which a path to a file or folder is only its last name.

    >>> without_folders("trained on folder:/data/me/cats (train), from runs/a")
    'trained on folder:cats (train), from a'
    """

    def last_name(found: re.Match) -> str:
        word = found[0]
        if "://" in word:
            return word
        kind, colon, path = word.partition(":")
        if not colon or len(kind) == 1:  # a drive
            kind, colon, path = "", "", word
        return kind + colon + re.split(r"[/\\]", path.rstrip("/\\"))[-1]

    return _WORD.sub(last_name, text)


def _cost(predictor: Predictor) -> dict[str, int | None]:
    """Return the parameters of all modules, and the multiply-adds of one image."""
    in_float = jax.eval_shape(dequantized, predictor.variables)
    leaves = jax.tree.leaves(in_float.get("params", in_float))
    macs = macs_of(predictor.function, in_float, predictor.inputs["images"].of_batch(1))
    # The program of an exported file is not read.
    return {"parameters": sum(leaf.size for leaf in leaves) or None, "macs": macs or None}
