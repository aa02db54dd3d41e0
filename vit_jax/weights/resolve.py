"""Weights by whatever name they go: a published checkpoint, an address, a file, or a run."""

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
    """The record of a trained model and its variables: {"params": ..., and other collections}.

    Args:
        source: a name of `published.list_published`, `hf://...`, `https://...`, a file or folder
            that `read_pretrained` takes, or a run folder.
        hints: what a file does not say itself, if anything.
        part: which of several sets of weights in one file.

    Raises:
        UserError: it cannot be had, cannot be read, or does not say enough about itself.
    """
    hints = hints or Hints()
    published = PUBLISHED.get(os.fspath(source))
    if published is not None:
        source = published.where
        said = {name: value for name, value in vars(hints).items() if value is not None}
        hints = dataclasses.replace(published.hints, **said)
    path = fetch(source)
    run = RunDir(path)
    if not run.is_run():
        return read_pretrained(path, hints, part=part)
    record = run.read_model()
    if record.plugins and record.name not in MODELS and not Path(source).exists():
        raise UserError(
            f"{source} is a model of the module {', '.join(record.plugins)}, and what comes from "
            "elsewhere imports nothing; get that module, read it, and import it first "
            "(--config.plugins does)"
        )
    variables, _ = run.read_variables()
    return record, variables
