"""Student, teacher and their heads from a full checkpoint of DINO.

    found = read_self_distillation("dino_deitsmall16_pretrain_full_checkpoint.pth", Hints(heads=6))
    task = SelfDistillation(found.model, **found.fields)
    task.loss(found.variables, ...)

`read_pretrained` reads one of the encoders of the same file, with `part="teacher"`.
"""

import dataclasses
import os
from typing import Any

import jax
import numpy as np

from vit_jax.errors import UserError
from vit_jax.models.inputs import trace_init
from vit_jax.models.vit.dino_head import DinoHead
from vit_jax.models.vit.weights import dino_head
from vit_jax.weights.convert import read_pretrained
from vit_jax.weights.formats import Hints, axes_of
from vit_jax.weights.io import files
from vit_jax.weights.mapping import Tensors, read_params, summarize
from vit_jax.weights.of_tasks.task_weights import TaskWeights


def read_self_distillation(source: str | os.PathLike, hints: Hints | None = None) -> TaskWeights:
    """Read the encoders and heads of student and teacher, and the centre.

    Args:
        source: a full checkpoint as DINO's `main_dino.py` writes it.
        hints: as for `read_pretrained`; the number of attention heads is not in the file.

    Returns the variables {"params": {"encoder": ..., "head": ...}, "teacher": the same,
    "center": ..., "schedule": ...}; the centre is that of the file, or 0.

    Raises:
        UserError: the file has no student, teacher or head, or they do not fit each other.
    """
    records, networks = {}, {}
    for part in ("student", "teacher"):
        records[part], variables = read_pretrained(source, hints, part=part)
        try:
            head = _read_head(files.read_tensors(source, part=part))
        except UserError as error:
            raise UserError(f"{source}: {part}: {error}") from error
        networks[part] = {"encoder": variables["params"], "head": head}
    shapes = [jax.tree.map(np.shape, network) for network in networks.values()]
    if records["student"] != records["teacher"] or shapes[0] != shapes[1]:
        raise UserError(f"{source}: student and teacher are networks of different sizes")
    heads = [network["head"] for network in networks.values()]
    fixed = all((head["last_layer"]["scale"] == 1).all() for head in heads)
    for head in heads if fixed else ():
        del head["last_layer"]["scale"]
    bottleneck, prototypes = heads[0]["last_layer"]["kernel"].shape
    fields = {
        "head_width": heads[0]["fc1"]["kernel"].shape[1],
        "bottleneck": bottleneck,
        "prototypes": prototypes,
        "norm_last_layer": fixed,
    }
    zeros = np.zeros(prototypes, np.float32)
    variables = {
        "params": networks["student"],
        "teacher": networks["teacher"],
        "center": {"value": _center(source, zeros), "sum": zeros, "weight": np.float32(0)},
        "schedule": {"updates": np.int32(0)},
    }
    record = dataclasses.replace(
        records["teacher"], task="self_distillation", encoder="teacher/encoder"
    )
    return TaskWeights(record, variables, fields)


# ------------------------------------------------------------------------------------------ inside


def _read_head(tensors: Tensors) -> dict[str, Any]:
    """Return the parameters of the head, with the lengths of its last layer."""
    tensors = {name: x for name, x in tensors.items() if name.startswith(dino_head.PREFIX)}
    if not tensors:
        raise UserError(
            "the file has no head of self-distillation; DINO's full checkpoints have one, named "
            "*_full_checkpoint.pth, and its files of the backbone do not"
        )
    width, inputs = axes_of(tensors, "head.mlp.0.weight", "out, in")
    prototypes, bottleneck = axes_of(tensors, "head.last_layer.weight_v", "out, in")
    head = DinoHead(width, bottleneck, prototypes, norm_last_layer=False)
    features = jax.ShapeDtypeStruct((1, inputs), np.float32)
    shapes = trace_init(head, features)["params"]
    reading = read_params(dino_head.ROWS, tensors, shapes)
    if reading.missing or reading.left_over:
        what = reading.missing or reading.left_over
        raise UserError(f"the head is another than DINO's of three layers: {summarize(what)}")
    return reading.params


def _center(source: str | os.PathLike, zeros: np.ndarray) -> np.ndarray:
    """Return the centre in the state of the loss; zeros if the file has none."""
    try:
        center = files.read_tensors(source, part="dino_loss").get("center")
    except UserError:
        return zeros
    if center is None or center.size != zeros.size:
        raise UserError(f"{source}: dino_loss has no centre of {zeros.size} numbers")
    return center.reshape(-1).astype(np.float32)
