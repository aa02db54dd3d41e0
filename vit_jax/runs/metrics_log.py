"""Log of a run, `metrics.jsonl`: the kinds of its lines, and how they are read."""

import json
import math
from pathlib import Path
from typing import Any

# Values of "kind" in a line.
TRAIN = "train"
EVALUATE = "evaluate"
EVALUATOR = "evaluator"  # of an evaluator besides the first
RESULT = "result"
DIAGNOSTICS = "diagnostics"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a log; empty without a file, and an incomplete last line is skipped.

    JSON has no non-finite numbers: null is read as NaN.
    """
    if not path.exists():
        return []
    lines = []
    for line in path.read_text("utf-8", errors="replace").splitlines():
        try:
            values = json.loads(line)
        except ValueError:
            continue
        if isinstance(values, dict) and isinstance(values.get("step"), int) and "kind" in values:
            lines.append({k: math.nan if v is None else v for k, v in values.items()})
    return lines


def result(lines: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the last line of a log if it is the result of a finished run; None otherwise."""
    return lines[-1] if lines and lines[-1]["kind"] == RESULT else None
