"""Datasets with dense targets on disk: folders with masks, COCO's JSON, and sets of TFDS."""

from collections.abc import Callable, Mapping

from vit_jax.data.sources.custom import Dataset
from vit_jax.data.sources.dense.coco import open_coco
from vit_jax.data.sources.dense.masks import open_masks

OF_FILES: Mapping[str, Callable[[str], Dataset]] = {"masks": open_masks, "coco": open_coco}
"""Openers of `KIND:PATH`, which get the path."""
