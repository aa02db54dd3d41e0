"""Models: layers, architectures, the registry of their names, and their cost.

The folders with a module `weights` hold architectures. They are found, not listed anywhere.
"""

import importlib
from pathlib import Path

from vit_jax.models.block import block_factory
from vit_jax.models.features import DistilledLogits, Features
from vit_jax.models.registry import create_model, list_models, model_fields, register
from vit_jax.models.vit.module import ViT

_HERE = Path(__file__).parent
_FOUND = (*_HERE.glob("*/weights.py"), *_HERE.glob("*/weights/__init__.py"))
# In the order of the list of names, ViTs first.
ARCHITECTURES = sorted(
    (path.relative_to(_HERE).parts[0] for path in _FOUND), key=lambda name: (name != "vit", name)
)
for _name in ARCHITECTURES:  # importing registers the names
    importlib.import_module(f"{__name__}.{_name}")

__all__ = [
    "ARCHITECTURES",
    "DistilledLogits",
    "Features",
    "ViT",
    "block_factory",
    "create_model",
    "list_models",
    "model_fields",
    "register",
]
