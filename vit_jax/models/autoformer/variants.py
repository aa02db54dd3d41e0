"""Names of the AutoFormers: the subnets that the authors found and publish."""

from vit_jax.models.autoformer.module import AutoFormer
from vit_jax.models.registry import register
from vit_jax.models.supernet.space import Subnet

# The files experiments/subnet of the authors' repository, microsoft/Cream, AutoFormer.
PUBLISHED = {
    "T": Subnet(
        192,
        (*(3,) * 10, 4, 3, 3),
        (3.5, 3.5, 3.0, 3.5, 3.0, 3.0, 4.0, 4.0, 3.5, 4.0, 3.5, 4.0, 3.5),
    ),
    "S": Subnet(
        384,
        (6, 6, 5, 7, 5, 5, 5, 6, 6, 7, 7, 6, 7),
        (3.0, 3.5, 3.0, 3.5, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 3.5, 4.0),
    ),
    "B": Subnet(
        576,
        (9, 9, 9, 9, 9, 10, 9, 9, 10, 9, 10, 9, 9, 10),
        (3.5, 3.5, 4.0, 3.5, 4.0, 3.5, 3.5, 3.0, 4.0, 4.0, 3.0, 4.0, 3.0, 3.5),
    ),
}
# Width, depth and heads of the supernets that they are parts of; the MLP is four times the width.
SUPERNETS = {"T": (256, 14, 4), "S": (448, 14, 7), "B": (640, 16, 10)}
_SOURCE = "AutoFormer: Searching Transformers for Visual Recognition (Chen et al. 2021)"

for _size, _subnet in PUBLISHED.items():
    register(f"AutoFormer-{_size}", AutoFormer, _SOURCE, **_subnet.fields())

register(
    "AutoFormer",
    AutoFormer,
    "the class itself, with the sizes of the base's supernet: for weights and sizes that have no "
    "name here",
)
