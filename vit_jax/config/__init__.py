"""Configuration: keys, valid values, and the files that set them."""

from typing import TYPE_CHECKING

from vit_jax.lazy import lazy_names

if TYPE_CHECKING:
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

# Help and error messages do not wait for the import of ml_collections.
__getattr__, __dir__ = lazy_names(__name__, globals(), dict.fromkeys(__all__, "loading"))
