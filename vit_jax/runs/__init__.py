"""Run folders: their files, their record, and parameters from their checkpoints."""

from typing import TYPE_CHECKING

from vit_jax.lazy import lazy_names

if TYPE_CHECKING:
    from vit_jax.runs.metrics_log import DIAGNOSTICS, EVALUATE, EVALUATOR, RESULT, TRAIN, result
    from vit_jax.runs.record import FORMAT, ModelRecord, unnamed_classes
    from vit_jax.runs.run_dir import RunDir

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
    "unnamed_classes",
]

_HOMES = dict.fromkeys(__all__, "metrics_log") | {"RunDir": "run_dir"}
_HOMES |= dict.fromkeys(("FORMAT", "ModelRecord", "unnamed_classes"), "record")
# Lazy, for commands that need no run.
__getattr__, __dir__ = lazy_names(__name__, globals(), _HOMES)
