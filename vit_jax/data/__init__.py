"""Image datasets, preprocessing, augmentation and batches."""

from typing import TYPE_CHECKING

# Imported now: a later import of the submodule of the same name would replace the function.
from vit_jax.data.images.decoding import decode
from vit_jax.lazy import lazy_names

if TYPE_CHECKING:
    from vit_jax.data.decode_errors import DecodeErrors
    from vit_jax.data.features import Feature, check_inputs
    from vit_jax.data.images.preprocess import Preprocessing
    from vit_jax.data.pipeline import eval_batches, train_batches, train_features
    from vit_jax.data.sampler import BalancedSampler, RepeatedSampler, ShuffledSampler
    from vit_jax.data.sources.custom import Dataset, register_source
    from vit_jax.data.sources.manifest.columns import TableOptions
    from vit_jax.data.sources.registry import list_splits, open_source, split_record
    from vit_jax.data.sources.source import Source
    from vit_jax.data.streams import Batch
    from vit_jax.data.texts import TextOptions
    from vit_jax.data.transforms.augment import Augment
    from vit_jax.data.transforms.registry import register_transform
    from vit_jax.data.transforms.views import MultiCrop, Views

__all__ = [
    "Augment",
    "BalancedSampler",
    "Batch",
    "Dataset",
    "DecodeErrors",
    "Feature",
    "MultiCrop",
    "Preprocessing",
    "RepeatedSampler",
    "ShuffledSampler",
    "Source",
    "TableOptions",
    "TextOptions",
    "Views",
    "check_inputs",
    "decode",
    "eval_batches",
    "list_splits",
    "open_source",
    "register_source",
    "register_transform",
    "split_record",
    "train_batches",
    "train_features",
]

_HOMES = {
    "Augment": "transforms.augment",
    "DecodeErrors": "decode_errors",
    "BalancedSampler": "sampler",
    "Batch": "streams",
    "Feature": "features",
    "MultiCrop": "transforms.views",
    "Views": "transforms.views",
    "check_inputs": "features",
    "Dataset": "sources.custom",
    "register_source": "sources.custom",
    "register_transform": "transforms.registry",
    "train_features": "pipeline",
    "Preprocessing": "images.preprocess",
    "RepeatedSampler": "sampler",
    "Source": "sources.source",
    "TableOptions": "sources.manifest.columns",
    "TextOptions": "texts",
    "ShuffledSampler": "sampler",
    "eval_batches": "pipeline",
    "list_splits": "sources.registry",
    "open_source": "sources.registry",
    "split_record": "sources.registry",
    "train_batches": "pipeline",
}

# Lazy, because prediction needs neither Grain nor TFDS.
__getattr__, __dir__ = lazy_names(__name__, globals(), _HOMES)
