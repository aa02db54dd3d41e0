"""One configuration key."""

from dataclasses import dataclass
from typing import Any

from vit_jax.config.values import Value


@dataclass(frozen=True)
class Key:
    """Configuration key: its default, meaning and valid values.

    optional: whether None is valid too; the value then comes from `augment.preset` or from the
        weights in `init_from`.
    """

    default: Any
    meaning: str
    allowed: Value
    optional: bool = False
