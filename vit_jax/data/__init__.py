"""Where pictures come from, and how they become batches."""

from vit_jax.data.augment import Augment
from vit_jax.data.decode import decode
from vit_jax.data.pipeline import Batch, TrainOrder, eval_batches, train_batches
from vit_jax.data.preprocess import Preprocessing
from vit_jax.data.sources import Source, list_splits, open_source, split_record

__all__ = [
    "Augment",
    "Batch",
    "Preprocessing",
    "Source",
    "TrainOrder",
    "decode",
    "eval_batches",
    "list_splits",
    "open_source",
    "split_record",
    "train_batches",
]
