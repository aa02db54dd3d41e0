"""Presets of a config, chosen by what follows the colon: `configs/finetune.py:lora`."""

from collections.abc import Mapping
from typing import Any

from vit_jax.errors import UserError, nearest, shown


def choose(presets: Mapping[str, Any], name: str) -> Any:
    """Return the preset of a name; raise `UserError` with all names if there is none."""
    if name not in presets:
        hint = nearest(name, presets) or "."
        known = ", ".join(map(repr, presets))
        raise UserError(f"the config has no preset {shown(name)}{hint} Presets: {known}")
    return presets[name]
