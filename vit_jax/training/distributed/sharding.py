"""Device mesh, and sharding of batches and the train state.

One mesh with three axes; `jax.jit` inserts the sums and exchanges between devices, and the same
code runs on one device and on many hosts:
    data     each device has its own part of a batch and a whole copy of the state
    fsdp     the same, but the state is sharded too, and parameters are gathered when needed
             (fully sharded data parallel: Rajbhandari et al. 2020, "ZeRO", stage 3)
    tensor   matrices are sharded along heads and hidden units, so that devices share one product
             (Shoeybi et al. 2019, "Megatron-LM", section 3)

The axes of a parameter along which it is sharded follow from its role
(`vit_jax.models.description.roles`). Moments of the optimizer and averages of parameters end in the
parameter's own path, so one description serves the whole train state.

Random numbers, losses and parameters equal those of a single device, up to rounding.
"""

import math
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from vit_jax.errors import UserError
from vit_jax.models.description import Described, Parameter, path_text

AXES = ("data", "fsdp", "tensor")


def find_devices(kind: str) -> list[jax.Device]:
    """Return the devices of a kind ("auto", "cpu", "gpu", "tpu"); "auto" is the best JAX finds.

    Raises UserError if there is none of that kind.
    """
    try:
        return jax.devices() if kind == "auto" else jax.devices(kind)
    # JAX fails an assertion if JAX_PLATFORMS names one that it cannot start.
    except (RuntimeError, AssertionError) as error:
        wanted = jax.config.jax_platforms if kind == "auto" else kind
        build = {"gpu": "cuda", "cuda": "cuda", "tpu": "tpu"}.get(wanted, "cuda|tpu")
        raise UserError(
            f"JAX finds no {wanted} device on this machine; check that it has one and that JAX was "
            f"installed for it (make train ACCELERATOR={build}), or run with --config.device=cpu"
        ) from error


def make_mesh(devices: list[jax.Device], data: int = -1, fsdp: int = 1, tensor: int = 1) -> Mesh:
    """Return a mesh with axes `data`, `fsdp` and `tensor` of these sizes; -1 uses the rest.

    Without a -1, only the first devices are used.

    Raises UserError for sizes that the devices cannot be arranged in.
    """
    sizes, count = {"data": data, "fsdp": fsdp, "tensor": tensor}, len(devices)
    written = " x ".join(f"mesh.{axis}={size}" for axis, size in sizes.items())
    rest = [axis for axis, size in sizes.items() if size == -1]
    if len(rest) > 1:
        raise UserError(
            f"only one axis of the mesh can be -1, but {written} has "
            f"{len(rest)}; use --config.mesh.{rest[0]}=1"
        )
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if fixed > count:
        raise UserError(
            f"{written} needs {fixed} devices, but there are {count}; make an axis smaller, or "
            "use -1 for one axis to take the rest"
        )
    if rest and count % fixed:
        raise UserError(
            f"{written}: {count} devices do not divide by {fixed}; the product of the given sizes "
            f"must be one of {', '.join(str(n) for n in range(1, count + 1) if not count % n)}"
        )
    if rest:
        sizes[rest[0]] = count // fixed
    # Axes of type Auto let the compiler choose what linen modules do not specify. The order is that
    # of the devices, which is that of their hosts: each host has one block of every batch
    # (`jax.make_mesh` would order those of a TPU pod differently).
    shape = tuple(sizes[axis] for axis in AXES)
    used = np.array(devices[: math.prod(shape)]).reshape(shape)
    return Mesh(used, AXES, axis_types=(AxisType.Auto,) * 3)


def batch_shards(mesh: Mesh) -> int:
    """Return the number of shards of a batch: the product of `data` and `fsdp`."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def replicated(mesh: Mesh) -> NamedSharding:
    """Sharding with a whole copy on every device."""
    return NamedSharding(mesh, PartitionSpec())


def split_batch(mesh: Mesh) -> NamedSharding:
    """Sharding of the leading axis along `data` and `fsdp`."""
    return NamedSharding(mesh, PartitionSpec(("data", "fsdp")))


def shard_state(state: Any, mesh: Mesh, described: Described) -> Any:
    """Return the sharding of each array of a train state, as a tree of the same structure.

    Args:
        state: anything whose leaves have a `shape`.
        described: the parameters, by paths in which those of the state end.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: NamedSharding(
            mesh, partition(leaf.shape, mesh, _parameter_of(path_text(path), described))
        ),
        state,
    )


def partition(
    shape: tuple[int, ...], mesh: Mesh, parameter: Parameter | None = None
) -> PartitionSpec:
    """Return the sharding of one array: by its role, else its longest axis along `fsdp`.

    Axes of a role are counted from the last. The leading axis of a stack is not sharded, nor is an
    axis that does not divide, nor are vectors without a rule: they are small.
    """
    axes = parameter and parameter.role.sharding
    if axes and len(shape) >= len(axes):
        whole = (None,) * (len(shape) - len(axes))
        return _divisible((*whole, *axes), shape, mesh)
    stacked = parameter is not None and parameter.is_stack
    if len(shape) - stacked < 2:
        return PartitionSpec()
    longest = max(range(int(stacked), len(shape)), key=lambda axis: shape[axis])
    axes = tuple("fsdp" if axis == longest else None for axis in range(len(shape)))
    return _divisible(axes, shape, mesh)


def bytes_on_a_device(state: Any) -> int:
    """Return the bytes per device of a state of arrays, or of shapes with shardings."""
    leaves = jax.tree.leaves(state)
    shards = [math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in leaves]
    return sum(n * leaf.dtype.itemsize for n, leaf in zip(shards, leaves, strict=True))


def to_devices(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Turn this host's block of a global batch into the global arrays of the step."""
    sharding = split_batch(mesh)
    return {
        name: jax.make_array_from_process_local_data(sharding, array)
        for name, array in batch.items()
    }


def _divisible(axes: tuple[str | None, ...], shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    fits = (axis and size % mesh.shape[axis] == 0 for axis, size in zip(axes, shape, strict=True))
    return PartitionSpec(*(axis if fit else None for axis, fit in zip(axes, fits, strict=True)))


def _parameter_of(path: str, described: Described) -> Parameter | None:
    """Return the parameter in whose path the path of an array of the state ends."""
    while path and path not in described:
        path = path.partition("/")[2]
    return described.get(path)
