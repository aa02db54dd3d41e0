"""ResNet (He et al. 2016)."""

from vit_jax.models.resnet.module import ResNet

__all__ = ["ResNet"]
