"""One backbone with a head for each of several tasks."""

from vit_jax.models.universal import variants  # noqa: F401  (registers the name)
from vit_jax.models.universal.module import UniversalViT

__all__ = ["UniversalViT"]
