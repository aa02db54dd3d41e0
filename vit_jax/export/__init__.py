"""Export of trained models: programs and files that run without this package."""

from typing import TYPE_CHECKING

from vit_jax.lazy import lazy_names

if TYPE_CHECKING:
    from vit_jax.export.exported import Exported, ExportedClassifier, load_exported
    from vit_jax.export.targets import TARGETS, export_run

__all__ = ["TARGETS", "Exported", "ExportedClassifier", "export_run", "load_exported"]

_HOMES = {
    "TARGETS": "targets",
    "Exported": "exported",
    "ExportedClassifier": "exported",
    "export_run": "targets",
    "load_exported": "exported",
}

# Lazy, because each target needs its own libraries.
__getattr__, __dir__ = lazy_names(__name__, globals(), _HOMES)
