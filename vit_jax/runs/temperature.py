"""Fitted temperature of a run, `figures/temperature.json`: what its logits are divided by."""

import json
from pathlib import Path

from vit_jax.runs.run_dir import RunDir

_FILE = "temperature.json"


def temperature_file(run: RunDir) -> Path:
    """Return its path."""
    return run.figures / _FILE


def stored_temperature(run: RunDir) -> float | None:
    """Return the temperature; None if none was fitted, or the file is damaged."""
    try:
        return float(json.loads(temperature_file(run).read_text(encoding="utf-8"))["temperature"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
