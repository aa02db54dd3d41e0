"""Multi-process training: connecting processes, agreeing on values, and stopping together.

All processes run the same command, each on its own devices and its own block of every batch.
Collective operations have to run in the same order on all of them, or each waits forever for an
operation that another never starts. This module therefore provides:

- `initialize`: connects the processes, given by flags or detected by JAX from Slurm, Open MPI,
  Kubernetes or a TPU pod; failures are reported in a sentence;
- `gather`: collects the values of all processes on all of them. `together` and `check_same` use
  it: an error of one process is raised on all, with its message;
- `SharedFlag`: a signal that reached one process stops all of them after the same step;
- `leave`: ends a failed process without waiting for the others, which then notice.
"""

import contextlib
import functools
import importlib.util
import itertools
import json
import os
import queue
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vit_jax.errors import UserError

# Seconds that processes wait for each other: to connect, and for a heartbeat (JAX's default for the
# latter).
TIMEOUT = 100

_OPEN_MPI, _SLURM, _KUBERNETES, _TPU = "Open MPI", "Slurm", "Kubernetes", "a TPU pod"

# The variables that JAX needs to find the other tasks of a Slurm step.
_SLURM_VARIABLES = {
    *("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID"),
}

# JAX aborts the process after its own timeout, so that one is longer than ours.
_LONGER = 60


def initialize(
    coordinator: str = "",
    processes: int | None = None,
    process: int | None = None,
    *,
    timeout: int = TIMEOUT,
) -> None:
    """Connect this process with the others; do nothing if there is only one.

    Call it before anything asks JAX for devices. Without arguments, JAX detects the others if a
    launcher has started several processes. `processes=1` alone disables the detection.

    Args:
        coordinator: address of process 0, as HOST:PORT with a free port.
        processes: number of processes.
        process: index of this process, from 0.
        timeout: seconds to wait for the others to connect; also the seconds without a heartbeat
            after which a process counts as dead and the others end.

    Raises:
        UserError: only some of the three are given, one is invalid, the port is in use, or the
            others do not connect.
    """
    if timeout < 1:
        raise UserError(f"--timeout={timeout} is invalid: use a number of seconds, at least 1")
    if processes == 1 and not coordinator and process in (None, 0):
        return
    flags = {"--coordinator": coordinator or None, "--processes": processes, "--process": process}
    missing = [flag for flag, value in flags.items() if value is None]
    if len(missing) == len(flags):
        launcher = _launcher(os.environ)
        if launcher is not None and _join({}, timeout, launcher) and _owns_what_it_sees(os.environ):
            # JAX gives each task of Slurm and Open MPI one GPU, by its index on the machine.
            jax.config.update("jax_cuda_visible_devices", "all")
            jax.config.update("jax_rocm_visible_devices", "all")
        return
    if missing:
        raise UserError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: several "
            "processes need --coordinator=HOST:PORT (of process 0), --processes=N and --process=I; "
            "omit all three if a launcher such as Slurm sets them"
        )
    _check(coordinator, processes, process)
    _join(
        {
            "coordinator_address": coordinator,
            "num_processes": processes,
            "process_id": process,
            "cluster_detection_method": "deactivate",  # only the flags count
        },
        timeout,
    )


def _launcher(environ: Mapping[str, str]) -> str | None:
    """Return the launcher that may have started this process as one of several; None if none has.

    JAX itself would also take a single task for a cluster, and a pod that belongs to no job.
    """
    if "OMPI_COMM_WORLD_SIZE" in environ:
        return _OPEN_MPI if int(environ["OMPI_COMM_WORLD_SIZE"]) > 1 else None
    if environ.keys() >= _SLURM_VARIABLES:
        tasks = environ.get("SLURM_STEP_NUM_TASKS") or environ["SLURM_NTASKS"]
        return _SLURM if int(tasks) > 1 else None
    if "KUBERNETES_SERVICE_HOST" in environ and "JOB_COMPLETION_INDEX" in environ:
        return _KUBERNETES
    wanted = environ.get("JAX_PLATFORMS") or "tpu"
    if "tpu" in wanted and importlib.util.find_spec("libtpu") is not None:
        return _TPU  # JAX finds out how many hosts share them
    return None


def _owns_what_it_sees(environ: Mapping[str, str]) -> bool:
    """Return whether a process owns every GPU that it sees."""
    if "," not in environ.get("CUDA_VISIBLE_DEVICES", ","):
        return True
    if "OMPI_COMM_WORLD_LOCAL_SIZE" in environ:
        return environ["OMPI_COMM_WORLD_LOCAL_SIZE"] == "1"
    # One on each machine: Slurm writes 1, or 1(x4) for four machines.
    return bool(re.fullmatch(r"1(\(x\d+\))?", environ.get("SLURM_STEP_TASKS_PER_NODE", "")))


def _check(coordinator: str, processes: int, process: int) -> None:
    """Raise UserError for invalid flags, or if process 0 cannot listen at its address."""
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UserError(
            f"--coordinator={coordinator} is not HOST:PORT with a port from 1 to 65535, such as "
            "localhost:12345"
        )
    if processes < 1:
        raise UserError(
            f"--processes={processes} is invalid: use a number of processes, at least 1"
        )
    if not 0 <= process < processes:
        legal = f"0 to {processes - 1}" if processes > 1 else "0"
        raise UserError(
            f"--process={process} is invalid: {processes} process{'es' * (processes > 1)} "
            f"(--processes) are numbered {legal}"
        )
    if process == 0:
        try:
            socket.create_server(("", int(port))).close()  # JAX would crash if this fails
        except OSError as error:
            raise UserError(
                f"process 0 cannot listen on port {port} of --coordinator={coordinator} "
                f"({error.strerror}); choose another port, the same for all processes"
            ) from error


def _join(options: dict[str, Any], timeout: int, launcher: str | None = None) -> bool:
    """Call `jax.distributed.initialize`; return False if there turns out to be no launcher."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # It would catch only SIGTERM; `SharedFlag` handles all signals that stop a run.
    jax.config.update("jax_enable_preemption_service", False)
    ended: queue.Queue[Exception | None] = queue.Queue()

    def join() -> None:
        try:
            jax.distributed.initialize(
                **options,
                initialization_timeout=timeout + _LONGER,
                heartbeat_timeout_seconds=timeout,
            )
        except Exception as error:
            ended.put(error)
        else:
            ended.put(None)

    # In the main thread nothing could interrupt it.
    threading.Thread(target=join, daemon=True).start()
    try:
        error = ended.get(timeout=timeout)
    except queue.Empty:
        raise UserError(
            f"the processes of this run did not connect within {timeout} seconds; start "
            "one for every index from 0 to N - 1 with the same --coordinator, an address "
            "of process 0 that the others can reach, or wait longer with --timeout=SECONDS"
        ) from None
    if error is None:
        return True
    if launcher == _TPU and isinstance(error, ValueError):
        return False  # libtpu is installed, and JAX sees no pod
    cause = f"{launcher} has started several processes, and they" if launcher else "The processes"
    raise UserError(
        f"{cause} cannot be joined ({_first_line(error)}); name them with --coordinator=HOST:PORT, "
        "--processes=N and --process=I, or use --processes=1 for a process that trains alone"
    ) from error


def is_joined() -> bool:
    """Return whether this process is one of several that wait for each other."""
    return jax.distributed.is_initialized()


def is_primary() -> bool:
    """Return whether this is the process that writes files and prints messages."""
    return jax.process_index() == 0


def gather(value: Any) -> list[Any]:
    """Return the values of all processes, in their order. All processes have to call it.

    Args:
        value: anything that JSON can represent.
    """
    if jax.process_count() == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = multihost_utils.process_allgather(np.int32(len(text)))
    padded = np.zeros(-(-lengths.max() // 1024) * 1024, np.uint8)  # few shapes, few compilations
    padded[: len(text)] = text
    texts = multihost_utils.process_allgather(padded)
    return [json.loads(bytes(row[:end])) for row, end in zip(texts, lengths, strict=True)]


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Run a block on every process that succeeds on all of them or on none.

    If it fails on some, the others raise UserError with the message of the first that failed.
    """
    try:
        yield
    except Exception as error:
        with contextlib.suppress(Exception):  # the others may have failed in another way
            gather(_first_line(error))
        raise
    for index, sentence in enumerate(gather(None)):
        if sentence is not None:
            raise UserError(f"process {index} of {jax.process_count()} failed: {sentence}")


def check_same(values: Mapping[str, Any]) -> None:
    """Raise UserError if a process has a different value than process 0."""
    first, *others = gather(dict(values))
    for index, other in enumerate(others, start=1):
        for name in first.keys() | other.keys():
            if first.get(name) != other.get(name):
                raise UserError(
                    f"process {index} has {name} = {other.get(name)!r} but process 0 has "
                    f"{first.get(name)!r}; start all processes with the same command, data "
                    "and versions, with --workdir on a disk that all of them share"
                )


def check_mesh(mesh: Mesh) -> None:
    """Raise UserError unless every process has its own block of each batch, in their order.

    It fails if devices of the mesh that share a part of the batch belong to different processes,
    or if a process has no part.
    """
    count = jax.process_count()
    owners = np.vectorize(lambda device: device.process_index)(mesh.devices)
    owners = owners.reshape(-1, mesh.shape["tensor"])
    blocks = np.repeat(np.arange(count), max(1, len(owners) // count))
    if len(blocks) != len(owners) or (owners != blocks[:, None]).any():
        raise UserError(
            f"a mesh of {' x '.join(f'{axis}={size}' for axis, size in mesh.shape.items())} does "
            f"not give each of the {count} processes, with {jax.local_device_count()} devices each,"
            " its own part of the batch; use all devices, and let mesh.tensor divide the "
            "number of devices of a process"
        )


def connect(mesh: Mesh) -> None:
    """Open the connections between the devices of a mesh, for sums over each set of its axes.

    A CPU's end of a connection waits 30 seconds for the other one, and compiling the first step may
    take one process that much longer than another. Here all are at the same point.
    """
    if jax.process_count() == 1:
        return
    axes = [axis for axis, size in mesh.shape.items() if size > 1]
    ones = jax.jit(
        functools.partial(jnp.ones, mesh.devices.shape),
        out_shardings=NamedSharding(mesh, PartitionSpec(*mesh.axis_names)),
    )()
    for count in range(1, len(axes) + 1):
        for group in itertools.combinations(axes, count):
            kept = [None if axis in group else axis for axis in mesh.axis_names]
            summed = tuple(mesh.axis_names.index(axis) for axis in group)
            add = functools.partial(jnp.sum, axis=summed, keepdims=True)
            where = NamedSharding(mesh, PartitionSpec(*kept))
            jax.jit(add, out_shardings=where)(ones).block_until_ready()


class SharedFlag:
    """Flag that is set on all processes, from the same call on, once it was set on one.

    All have to call it equally often. The result is one call old, so that no call waits for the
    step in progress: each call sums the flags on the devices and reads the sum of the call before.

    Args:
        flag: flag of this process.
        mesh: of all devices.
    """

    def __init__(self, flag: Callable[[], bool], mesh: Mesh):
        self._flag = flag
        self._up = False
        self._before: jax.Array | None = None
        self._sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        self._any = jax.jit(
            lambda flags: flags.any(), out_shardings=NamedSharding(mesh, PartitionSpec())
        )

    def __call__(self) -> bool:
        if jax.process_count() == 1:
            return self._flag()
        if not self._up:
            mine = np.full(len(self._sharding.addressable_devices), self._flag())
            flags = jax.make_array_from_process_local_data(self._sharding, mine)
            before, self._before = self._before, self._any(flags)
            self._up = before is not None and bool(before)
        return self._up


def leave(code: int) -> NoReturn:
    """End this process immediately; a normal exit would wait for the others, and they for it."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
