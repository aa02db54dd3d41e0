"""Several processes train as one does, stop together, and never wait for one that is gone.

The processes are real ones on this machine, started with train.py, of four simulated devices each.
"""

import contextlib
import importlib.machinery
import os
import re
import socket
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from tests.folders import ROOT
from tests.support.processes import on_devices
from vit_jax.errors import UserError
from vit_jax.runs import RunDir
from vit_jax.training.distributed import processes as distributed

PATIENCE = 900  # seconds until a test gives up a process, on a busy machine

RANDOM = {  # everything that draws random numbers on the devices
    "model.mlp_dropout": "0.1",
    "model.drop_path": "0.1",
    "augment.mixup": "0.5",
    "optimizer.learning_rate": "0.01",
    # The parts of 145 images that two hosts with batches of 32 see are unequal: 80 and 65.
    "data.test": "test[:145]",
}
TWENTY = {**RANDOM, "duration": "20 steps", "evaluate.every": "10", "checkpoint.every": "5"}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        return one.getsockname()[1]


@pytest.fixture
def start(overrides):
    """Starts one process of a run, and ends it with the test if it still lives."""
    with contextlib.ExitStack() as cleanup:

        def begin(workdir, changes, flags=(), devices=4, script=("train.py",)):
            command = [sys.executable, *script, "--config=configs/digits.py"]
            command += [f"--workdir={workdir}", *flags]
            command += [f"--config.{key}={value}" for key, value in overrides(changes)]
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**on_devices(devices), "JAX_PLATFORMS": "cpu"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
            cleanup.callback(process.communicate)
            cleanup.callback(process.kill)
            return process

        yield begin


@pytest.fixture
def run_two(start):
    """Runs two processes of one run; their exit codes and what they wrote.

    changes: of both; `second`: changes of the second one besides, `script` what it runs.
    """

    def run(workdir, changes, second=None, script=("train.py",)):
        flags = [f"--coordinator=localhost:{free_port()}", "--processes=2"]
        processes = [
            start(workdir, changes, [*flags, "--process=0"]),
            start(workdir, {**changes, **(second or {})}, [*flags, "--process=1"], script=script),
        ]
        outputs = [process.communicate(timeout=PATIENCE) for process in processes]
        return [process.returncode for process in processes], outputs

    return run


def assert_same(workdir, other):
    """The logs of two runs tell the same steps, with the same numbers to rounding."""
    lines, expected = (RunDir(folder).read_metrics() for folder in (workdir, other))
    assert [(line["kind"], line["step"]) for line in lines] == [
        (line["kind"], line["step"]) for line in expected
    ]
    for name in ("loss", "accuracy", "grad_norm", "examples"):
        got, wanted = ([line.get(name, 0) for line in run] for run in (lines, expected))
        np.testing.assert_allclose(got, wanted, rtol=1e-5, err_msg=name)
    looks, others = (
        [line for line in run if line["kind"] == "diagnostics"] for run in (lines, expected)
    )
    for look, other in zip(looks, others, strict=True):
        names = [name for name in other if "/" in name]
        assert look.keys() == other.keys() and len(names) > 10
        got, wanted = ([line[name] for name in names] for line in (look, other))
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-6, err_msg=str(names))


@pytest.mark.slow
def test_two_processes_of_four_devices_train_and_count_as_one_of_eight(start, run_two, tmp_path):
    changes = {**RANDOM, "duration": "4 steps", "evaluate.every": "4", "checkpoint.every": "4"}
    changes["log.diagnostics"] = "2"  # all processes take part, and one of them writes
    alone = start(tmp_path / "one", changes, devices=8)
    _, errors = alone.communicate(timeout=PATIENCE)
    assert alone.returncode == 0, errors
    codes, outputs = run_two(tmp_path / "two", changes)
    assert codes == [0, 0], outputs

    one, two = tmp_path / "one", tmp_path / "two"
    assert_same(two, one)
    lines = RunDir(two).read_metrics()
    assert [line["step"] for line in lines if line["kind"] == "train"] == [1, 2, 3, 4]
    assert lines[-1]["examples"] == 145
    assert lines[-1]["accuracy"] * 145 == pytest.approx(round(lines[-1]["accuracy"] * 145))
    # Process 0 speaks for all, and the run is that of any machine.
    (said, progress), (said_by_1, progress_of_1) = outputs
    assert "8 x cpu" in progress and "of 145" in said
    # Threads of the transport print in pieces, which may begin on the line of another.
    own = [line for line in said_by_1.splitlines() if not re.search(r"\[Gloo\]|peer ranks", line)]
    assert own == [] and "step" not in progress_of_1
    assert {path.name for path in one.iterdir()} == {path.name for path in two.iterdir()}


@pytest.mark.slow
def test_twenty_steps_are_those_of_one_process_however_often_they_end(start, run_two, tmp_path):
    """One gets SIGTERM, one does in an evaluation, one is killed: all stop, and all go on.

    That two processes which nobody stops train as one is tested above.
    """
    alone = start(tmp_path / "one", TWENTY, devices=8)
    _, errors = alone.communicate(timeout=PATIENCE)
    assert alone.returncode == 0, errors
    parts = tmp_path / "parts"
    ended = "tests/support/interrupted_run.py"
    for where, step, stopped in (("step", 8, 9), ("evaluate", 10, 10)):
        codes, outputs = run_two(parts, TWENTY, script=(ended, "SIGTERM", where, str(step)))
        assert codes == [75, 75], outputs
        assert RunDir(parts).steps()[-1] == stopped
        assert f"Stopped at step {stopped} of 20" in outputs[0][0]
    codes, outputs = run_two(parts, TWENTY, script=(ended, "SIGKILL", "step", "13"))
    assert codes[0] in (1, -6) and codes[1] == -9, outputs  # an error, or JAX's abort
    assert RunDir(parts).steps()[-1] == 10
    codes, outputs = run_two(parts, TWENTY)
    assert codes == [0, 0], outputs
    assert_same(parts, tmp_path / "one")


@pytest.mark.slow
def test_a_mistake_of_one_process_is_told_by_all(run_two, tmp_path):
    (tmp_path / "file").touch()
    codes, outputs = run_two(tmp_path / "run", {}, second={"data.dir": tmp_path / "file"})
    assert codes == [2, 2], outputs
    for _, errors in outputs:
        assert "could not be written to" in errors and "Traceback" not in errors
    assert "process 1 of 2 failed" in outputs[0][1]


@pytest.mark.slow
def test_processes_that_were_started_differently_do_not_train(run_two, tmp_path):
    codes, outputs = run_two(tmp_path / "run", {}, second={"seed": "1"})
    assert codes == [2, 2], outputs
    for _, errors in outputs:
        assert "process 1 has seed = 1 but process 0 has 0" in errors
    assert RunDir(tmp_path / "run").steps() == []


def test_a_process_whose_peers_do_not_come_says_so(start, tmp_path):
    flags = [f"--coordinator=localhost:{free_port()}", "--processes=2", "--process=0"]
    process = start(tmp_path / "run", {}, [*flags, "--timeout=2"])
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2, errors
    assert "did not connect within 2 seconds" in errors
    assert "Traceback" not in errors


# ------------------------------------------------------------------------ who starts, and with whom


@pytest.fixture
def joined(monkeypatch):
    """The calls of `jax.distributed.initialize`, which joins nothing here."""
    calls = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda **options: calls.append(options))
    return calls


def set_environ(monkeypatch, variables):
    for name in os.environ:
        if name.startswith(("SLURM_", "OMPI_", "KUBERNETES_", "JOB_", "CUDA_", "JAX_PLATFORMS")):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


SLURM = {  # as `srun` sets them for the second of two tasks
    "SLURM_JOB_ID": "65541",
    "SLURM_STEP_NODELIST": "node[001-002]",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1:34911",
}
KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "1"}
ALONE = {
    "nothing": {},
    "one task": {**SLURM, "SLURM_NTASKS": "1"},
    "an interactive step of a job for several": {
        **SLURM,
        "SLURM_NTASKS": "8",
        "SLURM_STEP_NUM_TASKS": "1",
    },
    "a batch script, outside of srun": {"SLURM_JOB_ID": "65541", "SLURM_NTASKS": "8"},
    "mpirun -n 1": {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1"},
    "a pod of no job": {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
}


@pytest.mark.parametrize("name", ALONE)
def test_a_lone_process_looks_for_nobody(monkeypatch, joined, name):
    set_environ(monkeypatch, ALONE[name])
    distributed.initialize()
    assert joined == []


@pytest.mark.parametrize("variables", [SLURM, OPEN_MPI, KUBERNETES])
def test_what_a_launcher_started_is_joined_by_jax(monkeypatch, joined, variables):
    set_environ(monkeypatch, variables)
    distributed.initialize(timeout=30)
    [options] = joined
    assert "coordinator_address" not in options  # JAX finds it
    assert options["heartbeat_timeout_seconds"] == 30
    joined.clear()
    distributed.initialize(processes=1)  # which says that this one trains alone
    assert joined == []


def test_flags_are_passed_on_as_they_are(monkeypatch, joined):
    set_environ(monkeypatch, SLURM)
    distributed.initialize("localhost:12345", 4, 3)
    [options] = joined
    assert options["coordinator_address"] == "localhost:12345"
    assert (options["num_processes"], options["process_id"]) == (4, 3)


@pytest.mark.parametrize(
    ("variables", "visible"),
    [
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x2)"}, "all"),  # a process for each machine
        ({"SLURM_STEP_TASKS_PER_NODE": "2"}, "0"),  # a process for each GPU, as JAX arranges it
        ({"SLURM_STEP_TASKS_PER_NODE": "2", "CUDA_VISIBLE_DEVICES": "1"}, "all"),  # as Slurm did
    ],
)
def test_a_process_that_is_alone_on_its_machine_takes_all_gpus(monkeypatch, variables, visible):
    set_environ(monkeypatch, {**SLURM, **variables})

    settings = {}
    monkeypatch.setattr(jax.config, "update", settings.__setitem__)

    def initialize(**_):  # does this for Slurm and Open MPI
        jax.config.update("jax_cuda_visible_devices", "0")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    distributed.initialize()
    assert settings["jax_cuda_visible_devices"] == visible


def fail(**_):
    raise ValueError("coordinator_address should be defined.")


def test_a_launcher_that_jax_cannot_follow_is_named(monkeypatch):
    set_environ(monkeypatch, KUBERNETES)
    monkeypatch.setattr(jax.distributed, "initialize", fail)
    with pytest.raises(UserError, match="Kubernetes has started several.*--coordinator=HOST:PORT"):
        distributed.initialize()


def test_libtpu_without_a_pod_is_no_mistake(monkeypatch):
    set_environ(monkeypatch, {})
    spec = importlib.machinery.ModuleSpec("libtpu", None)
    monkeypatch.setattr(distributed.importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(jax.distributed, "initialize", fail)
    distributed.initialize()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("localhost:12345", None, None), "--processes and --process are missing"),
        (("", 2, 0), "--coordinator is missing"),
        (("", None, 1), "--coordinator and --processes are missing"),
        (("", 1, 1), "--coordinator is missing"),
        (("localhost", 2, 0), "is not HOST:PORT"),
        (("localhost:http", 2, 0), "is not HOST:PORT"),
        (("localhost:70000", 2, 0), "is not HOST:PORT"),
        (("localhost:12345", 0, 0), "--processes=0 is invalid"),
        (("localhost:12345", 2, 2), "--process=2 is invalid: 2 processes .* numbered 0 to 1"),
        (("localhost:12345", 2, -1), "--process=-1 is invalid"),
    ],
)
def test_flags_that_cannot_be_are_told_in_a_sentence(joined, flags, message):
    with pytest.raises(UserError, match=message):
        distributed.initialize(*flags)
    assert joined == []


def test_a_port_that_is_taken_is_named(joined):
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UserError, match=f"cannot listen on port {port}"):
            distributed.initialize(f"localhost:{port}", 2, 0)
    assert joined == []


# ------------------------------------------------------------------------------- what they agree on


def mesh_of(owners, **shape):
    """What `check_mesh` sees of a mesh whose devices belong to these processes."""
    devices = [SimpleNamespace(process_index=owner) for owner in owners]
    return SimpleNamespace(shape=shape, devices=np.array(devices).reshape(*shape.values()))


@pytest.mark.parametrize(
    "mesh",
    [
        mesh_of([0, 1, 0, 1], data=4, fsdp=1, tensor=1),  # not in their order
        mesh_of([0, 0], data=2, fsdp=1, tensor=1),  # process 1 has no part
        mesh_of([0, 0, 1, 1], data=1, fsdp=1, tensor=4),  # both have the same part
        mesh_of([0, 0, 0, 1], data=4, fsdp=1, tensor=1),  # unequal parts
        mesh_of([0, 0, 1], data=3, fsdp=1, tensor=1),
    ],
)
def test_a_mesh_that_gives_a_process_no_block_of_its_own_is_refused(monkeypatch, mesh):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(UserError, match="does not give each of the 2 processes"):
        distributed.check_mesh(mesh)


def test_meshes_of_whole_blocks_are_taken(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    distributed.check_mesh(mesh_of([0, 0, 1, 1], data=4, fsdp=1, tensor=1))
    distributed.check_mesh(mesh_of([0, 0, 1, 1], data=1, fsdp=2, tensor=2))
    distributed.check_mesh(mesh_of([0, 0, 1, 1], data=2, fsdp=2, tensor=1))


def test_one_process_agrees_with_itself():
    assert distributed.gather({"a": [1]}) == [{"a": [1]}]
    with pytest.raises(ValueError, match="as it was"), distributed.together():
        raise ValueError("as it was")
    distributed.check_same({"seed": 0})


def test_a_flag_of_one_process_is_its_own():
    up = iter([False, True])
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    flag = distributed.SharedFlag(lambda: next(up), mesh)
    assert [flag(), flag()] == [False, True]
