"""ResNet (He et al. 2016)."""

from vit_jax.models.resnet import variants  # noqa: F401  (registers the names)
from vit_jax.models.resnet.module import ResNet

__all__ = ["ResNet"]
