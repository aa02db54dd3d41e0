"""Device mesh, and sharding of batches and the train state.

One mesh with three axes; `jax.jit` inserts the sums and exchanges between devices, and the same
code runs on one device and on many hosts:
    data     each device has its own part of a batch and a whole copy of the state
    fsdp     the same, but the state is sharded too, and parameters are gathered when needed
             (fully sharded data parallel: Rajbhandari et al. 2020, "ZeRO", stage 3)
    tensor   matrices are sharded along heads and hidden units, so that devices share one product
             (Shoeybi et al. 2019, "Megatron-LM", section 3)

Random numbers, losses and parameters equal those of a single device, up to rounding.
"""

import math
import re
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from vit_jax.errors import UserError

AXES = ("data", "fsdp", "tensor")

# Mesh axes of the axes of an array, by the end of its path; the first match counts. Axes are
# counted from the last: blocks stacked by `scan_layers` have an additional leading axis, which is
# not sharded. Moments of the optimizer and averages of parameters end in the parameter's own path,
# so one table serves the whole train state.
RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"qkv/kernel", ("fsdp", None, "tensor", None)),  # width, q k v, heads, head_dim
    (r"qkv/bias", (None, "tensor", None)),
    (r"out/kernel", ("tensor", None, "fsdp")),  # heads, head_dim, width
    (r"fc1/kernel", ("fsdp", "tensor")),  # width, hidden
    (r"fc1/bias", ("tensor",)),
    (r"fc2/kernel", ("tensor", "fsdp")),  # hidden, width
    (r"patch_embed/kernel", (None, None, None, "fsdp")),  # rows, columns, channels, width
    (r"pos_embed(/\w+)?", (None, "fsdp")),  # tokens, width
    (r"head/kernel", ("fsdp", None)),  # width, classes
)


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


def shard_state(state: Any, mesh: Mesh) -> Any:
    """Return the sharding of each array of a train state, as a tree of the same structure.

    Args:
        state: anything whose leaves have a `shape`.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: NamedSharding(mesh, partition(_path(path), leaf.shape, mesh)), state
    )


def partition(path: str, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Return the sharding of one array: by the table of rules, else its longest axis along `fsdp`.

    An axis that does not divide is not sharded, nor are vectors without a rule: they are small.
    """
    for end, axes in RULES:
        if re.search(f"(^|/){end}$", path) and len(shape) >= len(axes):
            whole = (None,) * (len(shape) - len(axes))
            return _divisible((*whole, *axes), shape, mesh)
    stacked = "blocks" in path.split("/")  # their first axis is not sharded, as with a rule
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


def _path(keys: tuple) -> str:
    """Return a path in a tree as text: `params/blocks_0/attn/qkv/kernel`."""
    return jax.tree_util.keystr(keys, simple=True, separator="/")
