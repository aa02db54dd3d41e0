"""Description of a model by itself: roles of its parameters, its blocks, and what they see."""

from vit_jax.models.description.parameters import (
    Described,
    Parameter,
    count_blocks,
    describe,
    map_described,
    path_text,
)
from vit_jax.models.description.roles import (
    Blocks,
    Matrix,
    Role,
    Roles,
    kernel_and_bias,
    model_roles,
)

__all__ = [
    "Blocks",
    "Described",
    "Matrix",
    "Parameter",
    "Role",
    "Roles",
    "count_blocks",
    "describe",
    "kernel_and_bias",
    "map_described",
    "model_roles",
    "path_text",
]
