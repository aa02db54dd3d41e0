"""Hardware limits: the peak FLOP/s of the devices, and the memory in use.

- Peaks are those of dense matrix products, from the vendors' own pages. NVIDIA's data sheets print
  twice as much "with sparsity", which no dense network reaches.
- "float32" means what JAX's default precision makes of a float32 product: TensorFloat-32 on NVIDIA
  from Ampere on, bfloat16 inputs on a TPU, plain float32 elsewhere (`jax.lax.Precision.DEFAULT`).
- A device that is not in the table, and any CPU, is measured: the best of some large products.
"""

import functools
import re
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models.summary.cost import cost

# Matched against the whole of `device.kind`. Related cards (a laptop's 4090, an L40, a slice of an
# A100) therefore match nothing and are measured.
# TFLOP/s of one JAX device: (pattern, float32, bfloat16).
PEAKS = (
    # NVIDIA data sheets V100 (01/2020) and T4 (03/2019). Neither multiplies bfloat16; XLA computes
    # such products in float32.
    (r"Tesla V100-SXM\d-\d+GB(-LS)?", 15.7, 15.7),
    (r"Tesla V100-PCIE-\d+GB", 14.0, 14.0),
    (r"(Tesla |NVIDIA )?T4", 8.1, 8.1),
    # NVIDIA data sheets A100 (06/2021), H100 (2023), H200 (2024), L4 (2023).
    (r"(NVIDIA )?A100-(SXM4|PCIE|PG509)-\d+GB|NVIDIA A100 80GB PCIe", 156.0, 312.0),
    (r"NVIDIA H100 80GB HBM\d+e?", 494.7, 989.4),
    (r"NVIDIA H100 PCIe", 378.0, 756.0),
    (r"NVIDIA H100 NVL", 417.5, 835.5),
    (r"NVIDIA H200( 141GB HBM3e)?", 494.7, 989.4),
    (r"NVIDIA H200 NVL", 417.5, 835.5),
    (r"NVIDIA L4", 60.0, 121.0),
    # A10G: the data sheet that AWS publishes (02/2022). It is not the A10, which has 125.
    (r"NVIDIA A10G", 35.0, 70.0),
    # White papers GA102 (2020) and Ada (2022); sums are kept in float32.
    (r"NVIDIA GeForce RTX 3090", 35.6, 71.0),
    (r"NVIDIA GeForce RTX 4090", 82.6, 165.2),
    # cloud.google.com/tpu/docs/system-architecture-tpu-vm, per chip. Each of the two cores of a v2
    # (46 a chip) or v3 (123) is a JAX device of its own.
    (r"TPU v2", 23.0, 23.0),
    (r"TPU v3", 61.5, 61.5),
    (r"TPU v4", 275.0, 275.0),
    (r"TPU v5 lite|TPU v5e", 197.0, 197.0),
    (r"TPU v5p?", 459.0, 459.0),
    (r"TPU v6 lite|TPU v6e", 918.0, 918.0),
)

# Long enough for the clock frequency to rise, short enough not to delay a run.
_MEASURING_SECONDS = 0.25


@dataclass(frozen=True)
class Peak:
    """Peak that a run's speed is compared with.

    flops: floating point operations per second, of all its devices together.
    source: "data sheet" or "measured".
    """

    flops: float
    source: str


@dataclass(frozen=True)
class Memory:
    """Memory `in_use` now, and its `peak` so far, in bytes."""

    in_use: int
    peak: int


def find_peak(devices: Sequence[jax.Device], precision: str) -> Peak:
    """Return the peak of matrix products on some devices.

    A device that is not in the table is measured once, which takes a third of a second. CPU
    devices of one process share its cores, so they count as one.

    Args:
        devices: of the mesh, those of other processes included; all of one kind.
        precision: "float32" or "bfloat16", the type of the computation.
    """
    count = len(devices)
    if devices[0].platform == "cpu":
        count = len({device.process_index for device in devices})
    known = known_peak(devices[0].device_kind, precision)
    if known is not None:
        return Peak(count * known, "data sheet")
    mine = [device for device in devices if device.process_index == jax.process_index()]
    device = mine[0] if mine else jax.local_devices()[0]
    return Peak(count * measured_peak(device, precision), "measured")


def known_peak(device_kind: str, precision: str) -> float | None:
    """Return the vendor's FLOP/s of one device; None for a kind not in the table."""
    for pattern, float32, bfloat16 in PEAKS:
        if re.fullmatch(pattern, device_kind):
            return 1e12 * {"float32": float32, "bfloat16": bfloat16}[precision]
    return None


@functools.cache
def measured_peak(device: jax.Device, precision: str) -> float:
    """Measure the FLOP/s of the fastest of several square matrix products on one device."""
    size = 1024 if device.platform == "cpu" else 4096
    matrix = jax.device_put(jnp.ones((size, size), precision), device)
    product = jax.jit(jnp.matmul)
    jax.block_until_ready(product(matrix, matrix))  # compiles
    fastest, begun = float("inf"), time.perf_counter()
    while time.perf_counter() - begun < _MEASURING_SECONDS:
        start = time.perf_counter()
        jax.block_until_ready(product(matrix, matrix))
        fastest = min(fastest, time.perf_counter() - start)
    return 2 * size**3 / fastest


def training_flops(model: nn.Module) -> int:
    """Return the floating point operations of training on one image.

    They are three times those of a forward pass: once for it, and twice for the gradients of inputs
    and weights (PaLM, arXiv 2204.02311, appendix B). Recomputation by `remat` is not counted, since
    the model does not need it, nor are elementwise operations.
    """
    return 3 * cost(model).flops


def memory(devices: Sequence[jax.Device]) -> Memory:
    """Return the memory of this process's fullest device, or of the process if devices report none.

    CPU devices do not report memory, so there it is the resident memory of this process, without
    its data workers.
    """
    stats = [d.memory_stats() for d in devices if d.process_index == jax.process_index()]
    stats = [s for s in stats if s and "bytes_in_use" in s]
    if stats:
        return Memory(
            max(s["bytes_in_use"] for s in stats),
            max(s.get("peak_bytes_in_use", s["bytes_in_use"]) for s in stats),
        )
    # Linux counts in kilobytes here, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    peak = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    in_use = _resident_bytes(default=peak)
    return Memory(in_use, max(in_use, peak))  # the two are not counted at the same moment


def _resident_bytes(default: int) -> int:
    """Return the resident memory of this process, or the default if the system reports none."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return default
    return pages * resource.getpagesize()
