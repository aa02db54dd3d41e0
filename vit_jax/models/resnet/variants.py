"""Names of the ResNets."""

from vit_jax.models.registry import register
from vit_jax.models.resnet.module import ResNet

for _name, _depths in {"50": (3, 4, 6, 3), "101": (3, 4, 23, 3), "152": (3, 8, 36, 3)}.items():
    register(
        f"ResNet-{_name}",
        ResNet,
        "Deep Residual Learning for Image Recognition (He et al. 2016), table 1; v1.5, with the "
        "stride in the 3 x 3 convolution",
        depths=_depths,
    )
register(
    "ResNet",
    ResNet,
    "the class itself, with the sizes of ResNet-50: for weights and sizes that have no name here",
)
