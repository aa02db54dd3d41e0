"""Name of the universal model."""

from vit_jax.models.registry import register
from vit_jax.models.universal.module import UniversalViT

register("UniversalViT", UniversalViT, "the class itself; its heads are those of their papers")
