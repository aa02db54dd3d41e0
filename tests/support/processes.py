"""What tests hand to the processes that they start."""

import os

from tests.folders import ROOT


def on_devices(count: int) -> dict[str, str]:
    """The environment of a process that sees `count` devices and imports the package from here.

    It compiles everything itself: see `compile_anew_where_unsafe`.
    """
    flags = [os.environ.get("XLA_FLAGS", ""), f"--xla_force_host_platform_device_count={count}"]
    return {
        **os.environ,
        "XLA_FLAGS": " ".join(flags).strip(),
        "PYTHONPATH": str(ROOT),
        "JAX_ENABLE_COMPILATION_CACHE": "false",
    }


def compiled_for_speed(monkeypatch) -> None:
    """What this test starts from here on trains in earnest: fast programs, not fast to build."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)
