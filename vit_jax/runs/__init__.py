"""Run folders: their files, their record, and parameters from their checkpoints."""

from typing import TYPE_CHECKING

from vit_jax.lazy import lazy_names

if TYPE_CHECKING:
    from vit_jax.runs.metrics_log import DIAGNOSTICS, EVALUATE, EVALUATOR, RESULT, TRAIN, result
    from vit_jax.runs.record import FORMAT, ModelRecord, unnamed_classes
    from vit_jax.runs.run_dir import RunDir, run_folders

__all__ = [
    "DIAGNOSTICS",
    "EVALUATE",
    "EVALUATOR",
    "FORMAT",
    "RESULT",
    "TRAIN",
    "ModelRecord",
    "RunDir",
    "result",
    "run_folders",
    "unnamed_classes",
]

_HOMES = dict.fromkeys(__all__, "metrics_log") | dict.fromkeys(("RunDir", "run_folders"), "run_dir")
_HOMES |= dict.fromkeys(("FORMAT", "ModelRecord", "unnamed_classes"), "record")
# Lazy, for commands that need no run.
__getattr__, __dir__ = lazy_names(__name__, globals(), _HOMES)
