"""Where pictures come from, and how they become batches."""

from typing import TYPE_CHECKING

# At once: it has the name of its file, which would stand in its place if that came first.
from vit_jax.data.decode import decode
from vit_jax.lazy import lazy_names

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

# Predicting needs no Grain and no TFDS.
__getattr__, __dir__ = lazy_names(__name__, globals(), _HOMES)
