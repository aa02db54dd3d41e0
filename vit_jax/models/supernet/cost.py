"""Parameters and multiply-accumulates of subnets, exact, without tracing each of them.

For one width both are linear in the number of blocks, the sum of their heads and the sum of their
hidden widths. So four models of this width determine them for all its subnets; `summary.cost`
counts these, from shapes.
"""

import functools
from typing import NamedTuple

from vit_jax.models.summary.cost import trace_cost
from vit_jax.models.supernet.masking import head_dim
from vit_jax.models.supernet.space import Subnet
from vit_jax.models.vit.module import ViT


class SubnetCost(NamedTuple):
    """Parameters, and multiply-accumulates of matrix products and convolutions on one image."""

    parameters: int
    macs: int


def subnet_cost(model: ViT, subnet: Subnet) -> SubnetCost:
    """Return the cost of a subnet, that of `summary.cost` for `subnet_of(model, subnet)`."""
    if subnet.patch_size is not None:
        model = model.clone(patch_size=subnet.patch_size)
    depth, heads, hidden = subnet.depth, sum(subnet.heads), sum(subnet.mlp_widths)
    return SubnetCost(
        *(
            rest + depth * block + heads * head + hidden * unit
            for rest, block, head, unit in _rates(model, subnet.width)
        )
    )


@functools.lru_cache(maxsize=256)
def _rates(model: ViT, width: int) -> tuple[tuple[int, int, int, int], ...]:
    """Return parameters, and MACs, of everything but blocks, a block, a head, a hidden unit."""

    def costs(heads: tuple[int, ...], hidden: tuple[int, ...]) -> SubnetCost:
        sizes = {"width": width, "depth": len(heads), "heads": heads, "mlp_width": hidden}
        found = trace_cost(model.clone(**sizes, head_dim=head_dim(model)))
        return SubnetCost(found.parameters, found.macs)

    rates = []
    measured = costs((1,), (1,)), costs((2,), (1,)), costs((1,), (2,)), costs((1, 1), (1, 1))
    for one, more_heads, wider, deeper in zip(*measured, strict=True):
        head, unit = more_heads - one, wider - one
        block = deeper - one - head - unit
        rates.append((one - block - head - unit, block, head, unit))
    return tuple(rates)
