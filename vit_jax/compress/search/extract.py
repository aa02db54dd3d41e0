"""A subnet of a trained supernet as a run of its own: an ordinary ViT with sliced weights."""

import dataclasses
import functools
import os
from typing import Any

from vit_jax.errors import UserError
from vit_jax.models.supernet.masking import head_dim, slice_subnet
from vit_jax.models.supernet.space import Subnet
from vit_jax.runs import ModelRecord
from vit_jax.runs.derived import check_empty, read_finished, write_derived
from vit_jax.tasks.supernet import Supernet


def extract(
    run: str | os.PathLike,
    folder: str | os.PathLike,
    subnet: Subnet,
    *,
    checkpoint: int | str = "last",
    raw: bool = False,
) -> ModelRecord:
    """Write a run folder with a subnet and the weights that it inherits; return its record.

    It is a ViT with its own heads and MLP width in each block: it is evaluated on the data of the
    supernet, fine-tuned with `init_from`, loaded and exported as any other.

    Args:
        run: a run of the task `supernet`. checkpoint, raw: of it.
        folder: output folder; it must be empty or missing.
        subnet: its sizes; they need not be in the search space.

    Raises:
        UserError: the run is no supernet or smaller than the subnet, or the folder is not empty.
    """
    check_empty(folder)
    source, record, variables, step = read_finished(run, checkpoint, raw=raw)
    if record.task != "supernet":
        raise UserError(
            f"{run} is no supernet, so it has no subnets; train one with --config.task=supernet"
        )
    model = record.create_model()
    try:
        params = slice_subnet(model, variables["params"], subnet)
    except ValueError as error:
        raise UserError(f"{run}: {error}") from error
    sizes = {**subnet.fields(), "head_dim": head_dim(model)}
    sliced = dataclasses.replace(
        record,
        fields={**{k: v for k, v in record.fields.items() if k != "mlp_ratio"}, **sizes},
        task="classification",
        options={},
        origin=f"subnet of {run} at step {step} ({record.origin})",
    )
    change_config = functools.partial(_config_of, sizes)
    write_derived(folder, source, sliced, {**variables, "params": params}, change_config)
    return sliced


def _config_of(sizes: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a supernet as that of a subnet."""
    own = Supernet.settable()
    objective = {name: value for name, value in config["objective"].items() if name not in own}
    model = {name: value for name, value in config["model"].items() if name != "mlp_ratio"}
    return {
        **config,
        "task": "classification",
        "model": {**model, **sizes},
        "objective": objective,
    }
