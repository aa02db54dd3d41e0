"""Quantization of trained models: kernels of 8 or 4 bits with a scale for each output channel.

    quantize("runs/digits", "runs/digits_int8")
    vit_jax.load("runs/digits_int8").predict("seven.png")

The roles of the parameters say which are kernels, and which of their axes are contracted. Norms,
biases, tokens and tables stay float32. The error of each weight is at most half a scale; symmetric
quantization by channel is that of Krishnamoorthi (2018), sections 2.2 and 3.1.
"""

import dataclasses
import math
import os
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from vit_jax.errors import UserError, nearest
from vit_jax.models.description import Matrix, Role, Roles, describe, model_roles, path_text
from vit_jax.models.quantized import ACTIVATIONS, BITS, Quantized, packed
from vit_jax.runs import ModelRecord, RunDir
from vit_jax.runs.derived import check_empty, read_finished, write_derived

SKIPPED = (Role.PATCH_EMBEDDING.value,)

_PARAMS = "params"
_DEPTHWISE = Matrix(inputs=None)  # each filter has a scale


def quantized_roles() -> list[Role]:
    """Return the roles of the kernels that are quantized."""
    return [role for role in Role if role.matrix or role is Role.DEPTHWISE]


class Sizes(NamedTuple):
    """Result of a quantization.

    kernels: their number. before, after: bytes of all arrays.
    """

    kernels: int
    before: int
    after: int


def quantize(
    run: str | os.PathLike,
    folder: str | os.PathLike,
    bits: int = 8,
    *,
    activations: str = "float",
    skip: Collection[str] = SKIPPED,
    checkpoint: int | str = "last",
    raw: bool = False,
) -> Sizes:
    """Write the quantized model of a run as a run folder, which everything but training accepts.

    Args:
        run: the folder of a finished run, or of converted weights.
        folder: output folder; it must be empty or missing.
        bits: of the kernels: 8 or 4.
        activations: "int8" also rounds the tokens before the linear layers of attention and MLPs,
            each by its largest number, and multiplies whole numbers there; with 8 bits only.
        skip: roles of kernels that stay float32, such as "patch_embedding" and "head". By default
            the first, which sees the pixels: it has less than 1 % of the weights of most models.
        checkpoint, raw: as for `vit_jax.load`.

    Raises:
        UserError: invalid arguments, a run that cannot be used, or a folder that is not empty.
    """
    _check(bits, activations)
    skipped = {_role(name) for name in skip}
    check_empty(folder)
    if earlier := RunDir(run).read_model().quantization:
        raise UserError(
            f"{run} is quantized already, to {earlier['bits']} bits; quantize the run that it was "
            "made from"
        )
    source, record, variables, _ = read_finished(run, checkpoint, raw=raw)
    new = quantized_variables(record, variables, bits, activations, skipped)
    kernels = sum(isinstance(leaf, Quantized) for leaf in _leaves(new))
    if not kernels:
        raise UserError(f"no kernel of {run} would be quantized; skip fewer roles")
    settings = {"bits": bits, "activations": activations, "skipped": sorted(skipped)}
    origin = f"{record.origin}, quantized to {bits} bits"
    record = dataclasses.replace(record, quantization=settings, origin=origin)
    write_derived(folder, source, record, new)
    return Sizes(kernels, _bytes(variables), _bytes(packed(new)))


def quantized_variables(
    record: ModelRecord,
    variables: Mapping[str, Any],
    bits: int = 8,
    activations: str = "float",
    skipped: Collection[Role] = (),
) -> dict[str, Any]:
    """Return the variables of a model with quantized kernels.

    Args:
        record: of the model. variables: of all modules of its task, as numpy arrays.
        bits, activations: as for `quantize`. skipped: roles of kernels that are kept.
    """
    collection, _, encoder = record.encoder.rpartition("/")
    of_model = model_roles(record.create_model())
    new = dict(variables)
    for name in {_PARAMS, collection or _PARAMS}:
        tree, roles = variables[name], of_model
        if encoder:  # the other modules of the task have roles by name
            roles = {part: of_model if part == encoder else None for part in tree}
        new[name] = _quantized(tree, roles, bits, activations, skipped)
    return new


def contracted_axes(
    params: Any, roles: Roles | None, skipped: Collection[Role] = ()
) -> dict[str, tuple[int, ...]]:
    """Return the contracted axes of each kernel that is quantized, by path.

    Args:
        params: arrays or their shapes. roles: of the model. skipped: roles that are not quantized.
    """
    described, found = describe(params, roles), {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = path_text(path)
        one = described[name]
        matrix = _DEPTHWISE if one.role is Role.DEPTHWISE else one.role.matrix
        rank = len(leaf.shape) - one.is_stack
        axes = matrix and one.role not in skipped and matrix.axes(rank)
        if axes:
            found[name] = axes[0]
    return found


def _quantized(
    params: Any, roles: Roles | None, bits: int, activations: str, skipped: Collection[Role]
) -> Any:
    axes = contracted_axes(params, roles, skipped)

    def change(path: Any, leaf: np.ndarray) -> Any:
        name = path_text(path)
        if name not in axes:
            return leaf
        return Quantized.of(leaf, axes[name], bits, activations)

    return jax.tree_util.tree_map_with_path(change, params)


def _leaves(tree: Any) -> list[Any]:
    return jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, Quantized))


def _bytes(tree: Any) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _check(bits: int, activations: str) -> None:
    if bits not in BITS:
        raise UserError(f"bits={bits} is invalid; use {' or '.join(map(str, BITS))}")
    if activations not in ACTIVATIONS:
        raise UserError(f"activations={activations} is invalid; use {' or '.join(ACTIVATIONS)}")
    if activations == "int8" and bits != 8:
        raise UserError(f"activations=int8 needs kernels of 8 bits, not {bits}; use bits=8")


def _role(name: str) -> Role:
    known = [role.value for role in quantized_roles()]
    if name not in known:
        raise UserError(
            f"skip={name} is no role of kernels; use some of {', '.join(known)}"
            f"{nearest(name, known)}"
        )
    return Role(name)
