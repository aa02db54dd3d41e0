"""Opening of weights by name: a published checkpoint, an address, a file, or a run."""

import dataclasses
import os
from pathlib import Path
from typing import Any

from vit_jax.errors import UserError
from vit_jax.models.registry import MODELS
from vit_jax.runs import ModelRecord, RunDir
from vit_jax.weights.convert import read_pretrained
from vit_jax.weights.formats import Hints
from vit_jax.weights.remote.hub import fetch
from vit_jax.weights.zoo import PUBLISHED


def open_weights(
    source: str | os.PathLike, hints: Hints | None = None, *, part: str | None = None
) -> tuple[ModelRecord, dict[str, Any]]:
    """Return the record of a trained model and its variables, {"params": ..., and others}.

    Args:
        source: a name of `zoo.list_published`, `hf://...`, `https://...`, a file or folder for
            `read_pretrained`, or a run folder.
        hints: hints for the facts that a file does not contain.
        part: name of one of several sets of weights in a file.

    Raises:
        UserError: the weights cannot be downloaded or read, or lack facts.
    """
    source, hints = place_of(source, hints)
    path = fetch(source)
    run = RunDir(path)
    if not run.is_run():
        return read_pretrained(path, hints, part=part)
    record = run.read_model()
    if record.plugins and record.name not in MODELS and not Path(source).exists():
        raise UserError(
            f"{source} is a model of the module {', '.join(record.plugins)}, which downloaded "
            "weights may not import; install and review that module, and import it first "
            "(--config.plugins)"
        )
    variables, _ = run.read_variables(in_float=True)
    return record.dequantized().alone(), record.of_encoder(variables)


def place_of(
    source: str | os.PathLike, hints: Hints | None = None
) -> tuple[str | os.PathLike, Hints]:
    """Return the address of a published checkpoint, or the same, and the hints with its own."""
    hints = hints or Hints()
    published = PUBLISHED.get(os.fspath(source))
    if published is None:
        return source, hints
    said = {name: value for name, value in vars(hints).items() if value is not None}
    return published.where, dataclasses.replace(published.hints, **said)
