"""Configuration: its keys, what they may hold, and the files that set them."""

from vit_jax.config.loading import (
    default_config,
    differences,
    flatten,
    literal,
    load_config,
    restore_config,
)

__all__ = [
    "default_config",
    "differences",
    "flatten",
    "literal",
    "load_config",
    "restore_config",
]
