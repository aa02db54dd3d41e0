"""Devices, the mesh over them, and how batches and the train state lie on it.

One mesh, one axis so far: `data`. Every batch is cut along it, the train state is a copy on each
device, and `jax.jit` puts the gradient's sum over the devices where it belongs. The same code runs
on one device and on many.
"""

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from vit_jax.errors import UserError


def find_devices(kind: str) -> list[jax.Device]:
    """Devices of a kind ("auto", "cpu", "gpu", "tpu"), "auto" being the best that JAX finds.

    Raises UserError where there is none of that kind.
    """
    try:
        return jax.devices() if kind == "auto" else jax.devices(kind)
    # JAX asserts instead where JAX_PLATFORMS names one that it cannot start.
    except (RuntimeError, AssertionError) as error:
        wanted = jax.config.jax_platforms if kind == "auto" else kind
        build = {"gpu": "cuda", "cuda": "cuda", "tpu": "tpu"}.get(wanted, "cuda|tpu")
        raise UserError(
            f"JAX finds no {wanted} device on this machine; check that it has one and that JAX was "
            f"installed for it (make train ACCELERATOR={build}), or run with --config.device=cpu"
        ) from error


def make_mesh(devices: list[jax.Device], data: int = -1) -> Mesh:
    """A mesh with the axis `data` over `data` devices; -1 takes all there are."""
    count = len(devices) if data == -1 else data
    if count > len(devices):
        raise UserError(
            f"mesh.data asks for {count} devices and there are {len(devices)}; "
            f"write --config.mesh.data={len(devices)} or -1 for all"
        )
    # Axes of type Auto let the compiler place what linen modules leave open.
    return jax.make_mesh((count,), ("data",), axis_types=(AxisType.Auto,), devices=devices[:count])


def replicated(mesh: Mesh) -> NamedSharding:
    """A whole copy on every device."""
    return NamedSharding(mesh, PartitionSpec())


def split_batch(mesh: Mesh) -> NamedSharding:
    """The leading axis cut into one piece for each device."""
    return NamedSharding(mesh, PartitionSpec("data"))


def to_devices(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """This host's block of a global batch, as the global arrays that the step takes."""
    sharding = split_batch(mesh)
    return {
        name: jax.make_array_from_process_local_data(sharding, array)
        for name, array in batch.items()
    }
