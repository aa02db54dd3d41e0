"""Where pictures come from, and how they become batches."""

import importlib
from typing import TYPE_CHECKING

# At once: it has the name of its file, which would stand in its place if that came first.
from vit_jax.data.decode import decode

if TYPE_CHECKING:
    from vit_jax.data.augment import Augment
    from vit_jax.data.bad_pictures import BadPictures
    from vit_jax.data.columns import TableOptions
    from vit_jax.data.order import BalancedOrder, RepeatedOrder, TrainOrder
    from vit_jax.data.pipeline import Batch, eval_batches, train_batches
    from vit_jax.data.preprocess import Preprocessing
    from vit_jax.data.sources import Source, list_splits, open_source, split_record

__all__ = [
    "Augment",
    "BadPictures",
    "BalancedOrder",
    "Batch",
    "Preprocessing",
    "RepeatedOrder",
    "Source",
    "TableOptions",
    "TrainOrder",
    "decode",
    "eval_batches",
    "list_splits",
    "open_source",
    "split_record",
    "train_batches",
]

_HOMES = {
    "Augment": "augment",
    "BadPictures": "bad_pictures",
    "BalancedOrder": "order",
    "Batch": "pipeline",
    "Preprocessing": "preprocess",
    "RepeatedOrder": "order",
    "Source": "sources",
    "TableOptions": "columns",
    "TrainOrder": "order",
    "eval_batches": "pipeline",
    "list_splits": "sources",
    "open_source": "sources",
    "split_record": "sources",
    "train_batches": "pipeline",
}


def __getattr__(name: str):
    """Import a public name when it is first used: predicting needs no Grain and no TFDS."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
