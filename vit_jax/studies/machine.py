"""The machine that a study runs on: its devices, their speed and memory."""

import os
from typing import NamedTuple

import jax

from vit_jax.process_setup import cores
from vit_jax.text import counted
from vit_jax.training.logging.hardware import find_peak


class Machine(NamedTuple):
    """Devices that train.

    kind: "cpu", "gpu" or "tpu". name: the vendor's. flops: peak per second, of all together.
    room: bytes of memory of one device, or of the computer; None: unknown.
    """

    kind: str
    name: str
    count: int
    flops: float
    room: int | None = None

    @property
    def is_accelerator(self) -> bool:
        """Return whether it is more than a processor."""
        return self.kind != "cpu"

    def describe(self) -> str:
        """Return it in words."""
        devices = f"{self.count} x {self.name}" if self.is_accelerator else "a processor"
        if not self.is_accelerator:
            devices += f" with {counted(cores(), 'core')}"
        room = f", {self.room / 2**30:,.0f} GiB" if self.room else ""
        return f"{devices}{room}, {self.flops / 1e9:,.0f} GFLOP/s at most"


def this_machine() -> Machine:
    """Return the machine of this process; its speed is measured if the vendor's is unknown."""
    devices = jax.devices()
    first = devices[0]
    limit = (first.memory_stats() or {}).get("bytes_limit")
    if first.platform == "cpu":
        limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    peak = find_peak(devices, "float32").flops
    return Machine(first.platform, first.device_kind, len(devices), peak, limit)
