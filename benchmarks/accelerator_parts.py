"""Parts of `benchmarks.accelerator`: functions that yield rows of its table.

Each runs in its own process, so that the peak memory reported by a device is that of the part.
Sizes with `tiny` are for a CPU, to check that everything runs.
"""

import contextlib
import importlib.metadata
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np

from benchmarks import attention, train_step
from benchmarks.accelerator import NAMES, Row
from benchmarks.peers import OURS, Case, product_rate
from vit_jax.models.summary.memory import memory
from vit_jax.training.logging.hardware import find_peak
from vit_jax.training.out_of_memory import find_out_of_memory

SMALL = Case("small", 32, image_size=28, patch_size=4, width=64, depth=4, heads=4)
TINY_MODEL = {"image_size": 16, "patch_size": 4, "width": 32, "depth": 2, "heads": 2}
LARGE_MODELS = {case.name.partition("-")[0]: case for case in train_step.ACCELERATOR}
LARGEST_BATCH, TIMED_STEPS = 1024, 10
GIB = 2**30


def environment(tiny: bool) -> Iterator[Row]:
    """Yield the devices, their memory, and the versions of driver and libraries."""
    devices = jax.devices()
    bytes_limit = (devices[0].memory_stats() or {}).get("bytes_limit")
    yield Row("device", f"{len(devices)} x {devices[0].device_kind}", note=devices[0].platform)
    yield Row(
        "memory available to JAX",
        f"{bytes_limit / GIB:.1f} GiB" if bytes_limit else "",
        note="" if bytes_limit else "not reported by this device",
    )
    versions = (f"{name} {importlib.metadata.version(name)}" for name in ("jax", "jaxlib", "flax"))
    yield Row("versions", ", ".join(versions), note=_driver())
    yield Row("cores", str(len(os.sched_getaffinity(0))))


def _driver() -> str:
    """Return driver and memory of NVIDIA GPUs, and JAX's platform version."""
    platform = jax.devices()[0].client.platform_version.partition("\n")[0]
    query = ["nvidia-smi", "--query-gpu=driver_version,memory.total", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
        return f"{platform}; driver, memory: {done.stdout.splitlines()[0]}"
    return platform


def peak(tiny: bool) -> Iterator[Row]:
    """Yield the fastest plain product of large matrices, compared with the data sheet."""
    for dtype in ("bfloat16", "float32"):
        measured, known = _measured_peak(dtype, tiny), find_peak(jax.devices()[:1], dtype)
        yield Row(
            f"matrix product, {dtype}",
            f"{measured / 1e12:.3g} TFLOP/s",
            f"{known.flops / 1e12:.3g} TFLOP/s, {known.source}",
            f"{measured / known.flops:.2f}",
            "float32 by JAX's default precision" if dtype == "float32" else "",
        )


def _measured_peak(dtype: str, tiny: bool) -> float:
    """Measure the FLOP/s of one device."""
    size = "float32" if tiny else dtype  # `product_rate` takes larger matrices for bfloat16
    rate = product_rate(OURS, SMALL._replace(dtype=size))
    return max(rate() for _ in range(3 if tiny else 20))


def losses(tiny: bool) -> Iterator[Row]:
    """Compare losses of training steps on this device with those of the CPU in float32."""
    steps = 5 if tiny else 50
    case = _tiny(4) if tiny else SMALL
    with jax.default_device(jax.devices("cpu")[0]):
        expected = train_step.LibraryStep(case, device="cpu").losses(steps)
    for dtype, precision, limit in (
        ("float32", "highest", 1e-3),
        ("float32", "default", 2e-2),
        ("bfloat16", "default", 5e-2),
    ):
        with jax.default_matmul_precision(precision):
            found = train_step.LibraryStep(case._replace(dtype=dtype)).losses(steps)
        difference = np.abs(found / expected - 1).max()
        yield Row(
            f"losses of {steps} steps, {dtype}, precision {precision}",
            f"{found[0]:.4f} to {found[-1]:.4f}",
            f"{expected[0]:.4f} to {expected[-1]:.4f}, CPU, float32",
            f"{1 + difference:.5f}",
            f"largest difference {difference:.1e}, "
            + ("as expected" if difference <= limit else f"MORE than {limit:g}"),
        )


def compare_attention(tiny: bool) -> Iterator[Row]:
    """Check that the gradients of all attention implementations agree, and time them."""
    for tokens in (17,) if tiny else attention.TOKENS:
        yield from _attention_rows(tokens, 256 if tiny else 2**16, "bfloat16")


def _attention_rows(tokens: int, total: int, dtype: str) -> Iterator[Row]:
    runs = attention.make_runs(tokens, total, dtype)
    differences = attention.find_differences(runs)
    seconds = attention.take_turns(runs, rounds=3) if differences else {}
    first = next(iter(differences), None)
    for name in runs:
        what = f"attention, {tokens} tokens, {name}"
        if name not in differences:
            yield Row(what, note=f"unavailable: {runs[name]}")
            continue
        equal = differences[name] <= attention.tolerance(dtype)
        times = zip(seconds[first], seconds[name], strict=True)
        yield Row(
            what,
            f"{1e3 * statistics.median(seconds[name]):.3g} ms",
            f"{1e3 * statistics.median(seconds[first]):.3g} ms, {first}",
            f"{statistics.median(theirs / ours for theirs, ours in times):.2f}",
            f"{'equal' if equal else 'NOT equal'}: largest difference {differences[name]:.1e}",
        )


def utilisation(name: str) -> Callable[[bool], Iterator[Row]]:
    """Return a part that times training steps at the largest batch that fits."""

    def measure(tiny: bool) -> Iterator[Row]:
        case = _tiny(8) if tiny else LARGE_MODELS[name]
        step, case = _largest_that_fits(case, 8 if tiny else LARGEST_BATCH)
        step.seconds(2)
        seconds = step.seconds(TIMED_STEPS) / TIMED_STEPS
        most = _measured_peak(case.dtype, tiny) * len(jax.devices())
        rate = step.flops / seconds
        yield Row(
            f"training step of {'a tiny ViT' if tiny else f'ViT-{name}'}, {case.dtype}",
            f"{rate / 1e12:.3g} TFLOP/s",
            f"{most / 1e12:.3g} TFLOP/s, matrix product",
            f"{rate / most:.2f}",
            f"batch {case.batch}, {1e3 * seconds:.1f} ms, {case.batch / seconds:,.0f} images/s",
        )

    return measure


def _largest_that_fits(case: Case, batch: int) -> tuple[train_step.LibraryStep, Case]:
    """Return the step at the largest power-of-two batch that fits, and its case."""
    limit = (jax.devices()[0].memory_stats() or {}).get("bytes_limit")
    while limit and batch > 1 and _estimate(case._replace(batch=batch)) > limit:
        batch //= 2
    while True:
        case, step = case._replace(batch=batch), None  # releases the memory of the last one
        try:
            step = train_step.LibraryStep(case)
            step.seconds(1)
            return step, case
        except Exception as error:
            if batch == 1 or find_out_of_memory(error) is None:
                raise
        batch //= 2


def _estimate(case: Case) -> int:
    """Estimate the bytes of a training step on one device, by `models/summary/memory.py`."""
    devices = len(jax.devices())
    return memory(case.model(), -(-case.batch // devices), train=True).total


def compare_memory(tiny: bool) -> Iterator[Row]:
    """Compare the peak memory of a step with the estimate that needs no device."""
    case = _tiny(8) if tiny else LARGE_MODELS["B/16"]._replace(batch=64)
    train_step.LibraryStep(case).seconds(2)
    stats = jax.devices()[0].memory_stats() or {}
    measured, estimated = stats.get("peak_bytes_in_use"), _estimate(case)
    yield Row(
        f"memory of a training step, {'a tiny ViT' if tiny else 'ViT-B/16'}, batch {case.batch}",
        f"{measured / GIB:.2f} GiB" if measured else "",
        f"{estimated / GIB:.2f} GiB, estimate",
        f"{measured / estimated:.2f}" if measured else "",
        case.dtype if measured else f"{case.dtype}; not reported by this device",
    )


def input_pipeline(tiny: bool) -> Iterator[Row]:
    """Compare images per second on all cores with a plain loop on as many."""
    from benchmarks.input_pipeline import (
        PHOTOGRAPHS,
        loop_rate,
        photograph_case,
        pipeline_rate,
        write_photographs,
    )

    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        paths = write_photographs(Path(folder) / "train", 16 if tiny else PHOTOGRAPHS)
        case = photograph_case(Path(folder), paths, tiny)
        if not tiny:
            case = case._replace(images=max(2048, 512 * cores))
        found = pipeline_rate(case, cores, time.perf_counter)
        plain = cores * loop_rate(case)
    yield Row(
        f"input pipeline, {cores} workers",
        f"{found:,.0f} images/s",
        f"{plain:,.0f} images/s, {cores} x a plain loop",
        f"{found / plain:.2f}",
        "JPEG of 500 x 375 pixels, random crops of 224",
    )


def _tiny(batch: int) -> Case:
    return Case("tiny", batch, **TINY_MODEL)


_FUNCTIONS = (
    environment,
    peak,
    losses,
    compare_attention,
    compare_memory,
    utilisation("B/16"),
    input_pipeline,
    utilisation("L/16"),
)
PARTS: dict[str, Callable[[bool], Iterator[Row]]] = dict(zip(NAMES, _FUNCTIONS, strict=True))
