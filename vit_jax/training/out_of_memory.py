"""Out-of-memory errors, explained with the remedies that apply.

XLA reports a number of bytes and an operation; the remedies depend on the configuration. They are
ordered by cost: the first ones are free, the last need other machines.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from vit_jax.config import flatten
from vit_jax.errors import Diverged, UserError
from vit_jax.training.setup.experiment import Experiment

START = "initialising the parameters and the optimizer state"
TRAINING = "training"
EVALUATION = "evaluating"

# Wording of XLA, CUDA and its libraries; "RESOURCE_EXHAUSTED" alone has other causes too.
_SAID = re.compile(r"RESOURCE_EXHAUSTED|out of memory|CUDA_ERROR_OUT_OF_MEMORY|_ALLOC_FAILED", re.I)
_OTHER = re.compile(r"vmem|smem|shared memory|open files|larger than max|quota", re.I)


@contextlib.contextmanager
def explained(experiment: Experiment, doing: str) -> Iterator[None]:
    """Convert an out-of-memory error in the block into a `UserError` with the remedies.

    Args:
        doing: the work in the block: START, TRAINING or EVALUATION.
    """
    try:
        yield
    except (UserError, Diverged):
        raise
    except Exception as error:
        cause = find_out_of_memory(error)
        if cause is None:
            raise
        raise UserError(explain_out_of_memory(cause, experiment, doing)) from error


def find_out_of_memory(error: BaseException | None) -> BaseException | None:
    """Return the out-of-memory error among an error and its causes; None if there is none."""
    while error is not None:
        text = str(error)
        if isinstance(error, MemoryError):
            return error
        if isinstance(error, RuntimeError) and _SAID.search(text) and not _OTHER.search(text):
            return error
        error = error.__cause__ or error.__context__
    return None


def explain_out_of_memory(error: BaseException, experiment: Experiment, doing: str) -> str:
    """Return a sentence on what did not fit, and the remaining remedies in order."""
    config, devices = dict(flatten(experiment.config)), experiment.mesh.size
    kind = experiment.mesh.devices.flat[0].platform
    where = "of this machine" if isinstance(error, MemoryError) or kind == "cpu" else f"of a {kind}"
    parts = config.get("accumulate_steps", 1)
    at_once = max(1, config["batch_size"] // (devices * parts))
    if doing == EVALUATION:
        at_once = -(-(config["evaluate.batch_size"] or config["batch_size"]) // devices)
    height, width = experiment.preprocessing.size
    asked = re.search(r"(\d{4,}) ?bytes", str(error))
    amount = f", which asked for {int(asked[1]) / 2**30:,.2f} GiB more" if asked else ""
    remedies = _remedies(experiment, config, error, doing, at_once, parts)
    numbered = "; ".join(f"({n}) {remedy}" for n, remedy in enumerate(remedies, start=1))
    return (
        f"out of memory while {doing}: the memory {where} was not enough{amount}; "
        f"{experiment.record.name}, images of {height} x {width}, {at_once} of them on each of "
        f"{devices} device{'s' if devices > 1 else ''} at a time. Remedies, in this order: "
        f"{numbered}. Everything saved before is intact"
    )


def _remedies(
    experiment: Experiment,
    config: dict[str, Any],
    error: BaseException,
    doing: str,
    at_once: int,
    parts: int,
) -> Iterator[str]:
    """Yield the remedies that are not yet in use, the cheapest first."""
    devices = experiment.mesh.size
    if doing == EVALUATION and at_once > 1:
        yield f"a smaller evaluation batch, --config.evaluate.batch_size={devices * (at_once // 2)}"
    if doing == TRAINING and config.get("log.diagnostics"):
        yield "no diagnostics, --config.log.diagnostics="
    if doing == TRAINING and at_once > 1:
        yield f"a smaller batch, --config.batch_size={devices * parts * (at_once // 2)}"
        of_each = at_once * parts
        more = next(n for n in range(parts + 1, of_each + 1) if of_each % n == 0)
        yield f"the same batch in {more} parts, --config.accumulate_steps={more}"
    if doing == TRAINING and getattr(experiment.model, "remat", "full") != "full":
        yield "recomputed activations, --config.model.remat=full"
    if doing != START and config["precision"] != "bfloat16":
        yield "activations in half the bytes, --config.precision=bfloat16"
    if config.get("mesh.fsdp", 1) == 1:
        many = devices if devices > 1 else "N"
        more = "" if devices > 1 else " on N devices"
        yield f"sharded parameters and optimizer state{more}, --config.mesh.fsdp={many}"
    yield "a smaller model or image_size"
    if isinstance(error, MemoryError):
        yield "fewer --config.data.workers, and no other programs that use this machine's memory"
    else:
        yield (
            "if other programs use the GPU, XLA_PYTHON_CLIENT_PREALLOCATE=false; otherwise "
            "XLA_PYTHON_CLIENT_MEM_FRACTION=.95, for more than JAX's default of three quarters"
        )
