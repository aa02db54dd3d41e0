"""What tests hand to the processes that they start, and one process of eight devices for all."""

import functools
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from unittest import mock

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


def on_eight_devices(function, *arguments):
    """Return what a function of a module gives in a process that sees eight devices.

    JAX fixes their number when it starts. The process is started once for all tests, for what it
    imports takes longer than what they do. Tests of a single device stay in a process of one, whose
    programs are those of a user: XLA cuts work into as many parts as it has threads, and it has as
    many as devices.
    """
    return _process_of_eight().submit(function, *arguments).result()


@functools.cache
def _process_of_eight() -> ProcessPoolExecutor:
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    with mock.patch.dict(os.environ, on_devices(8)):
        pool.submit(os.getpid).result()  # starts the process, which keeps this environment
    return pool


def compiled_for_speed(monkeypatch) -> None:
    """What this test starts from here on trains in earnest: fast programs, not fast to build."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)
