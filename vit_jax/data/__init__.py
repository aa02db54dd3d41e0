"""Where pictures come from, and how they become batches."""

from vit_jax.data.augment import Augment
from vit_jax.data.bad_pictures import BadPictures
from vit_jax.data.columns import TableOptions
from vit_jax.data.decode import decode
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
