"""Latency tables: several models, ways to compute them and batch sizes, measured in turns."""

import dataclasses
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from vit_jax.analysis.latency.contenders import Contender, open_contender, random_run
from vit_jax.analysis.latency.timing import time_in_turns
from vit_jax.errors import UserError
from vit_jax.process_setup import cores
from vit_jax.runs import RunDir


@dataclass(frozen=True)
class Row:
    """Row of a latency table.

    Attributes:
        model: the run folder or name that was asked for. way: what computes it.
        image_size: height and width in pixels. batch: images at once.
        parameters, macs: of the model, and multiply-adds of one image.
        stored_bytes: of the weights, or of the files.
        memory_bytes: of weights, inputs, outputs and temporaries, where a compiler tells them.
        p50_ms, p99_ms: median time of a batch, and the time that 99 % do not exceed.
        images_per_second: by the median.
        speed_up: of the first row of this batch size.
    """

    model: str
    way: str
    image_size: tuple[int, int]
    batch: int
    parameters: int
    macs: int
    stored_bytes: int
    memory_bytes: int | None
    p50_ms: float
    p99_ms: float
    images_per_second: float
    speed_up: float

    def to_json(self) -> dict[str, Any]:
        """Return its fields as values of JSON."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class _Entry:
    model: str
    image_size: tuple[int, int]
    contender: Contender


def measure(
    models: Sequence[str],
    ways: Sequence[str] = ("jit",),
    batches: Sequence[int] = (1,),
    *,
    image_size: tuple[int, int] | None = None,
    checkpoint: int | str = "last",
    seconds: float = 2.0,
    clock: Callable[[], float] = time.perf_counter,
    show: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> list[Row]:
    """Return the latency of models, each in all ways and batch sizes.

    All models and ways of one batch size take turns, and each is compared with the first.

    Args:
        models: run folders, or names of registered models, which get random parameters.
        ways: see `contenders.WAYS`.
        batches: numbers of images at once.
        image_size: pixels (height, width) of models that are given by name.
        checkpoint: of run folders.
        seconds: time of each measurement.
        clock: of seconds; `time.process_time` is meaningful for ratios on a processor that other
            programs use too.
        show: called with the present work, and how much of it is done.

    Raises:
        UserError: no such model or way, or a model that cannot be computed in one of them.
    """
    entries = []
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(models):
            run = _run_of(name, Path(folder) / str(number), image_size)
            for place, way in enumerate(ways):
                show("preparing", number * len(ways) + place, len(models) * len(ways))
                entries.append(_entry(name, run, way, checkpoint))
    rows = []
    for number, batch in enumerate(batches):
        show("measuring", number, len(batches))
        functions = [entry.contender.prepare(batch) for entry in entries]
        timings = time_in_turns(functions, seconds, clock=clock)
        for entry, timing in zip(entries, timings, strict=True):
            contender = entry.contender
            rows.append(
                Row(
                    model=entry.model,
                    way=contender.title,
                    image_size=entry.image_size,
                    batch=batch,
                    parameters=contender.parameters,
                    macs=contender.macs,
                    stored_bytes=contender.stored,
                    memory_bytes=contender.memory(batch),
                    p50_ms=1000 * timing.p50,
                    p99_ms=1000 * timing.p99,
                    images_per_second=batch / timing.p50,
                    speed_up=timing.speed_up(timings[0]),
                )
            )
    show("measuring", len(batches), len(batches))
    return rows


def machine() -> dict[str, Any]:
    """Return the device, the number of cores and the version of JAX."""
    device = jax.devices()[0]
    return {"device": device.device_kind, "cores": cores(), "jax": jax.__version__}


def _run_of(name: str, folder: Path, image_size: tuple[int, int] | None) -> RunDir:
    run = RunDir(name)
    if not run.is_run():
        return random_run(name, folder, image_size)
    if image_size is not None:
        raise UserError(
            f"--image-size is for models that are given by name; the run {name} has its own size"
        )
    return run


def _entry(name: str, run: RunDir, way: str, checkpoint: int | str) -> _Entry:
    contender = open_contender(way, run, checkpoint)
    record = run.read_model()
    return _Entry(name, record.preprocessing.size, contender)
