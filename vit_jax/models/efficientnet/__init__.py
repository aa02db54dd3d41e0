"""EfficientNet (Tan and Le 2019)."""

from vit_jax.models.efficientnet import variants  # noqa: F401  (registers the names)
from vit_jax.models.efficientnet.module import EfficientNet

__all__ = ["EfficientNet"]
