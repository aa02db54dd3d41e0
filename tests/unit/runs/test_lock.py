"""One training in a run folder at a time."""

import errno
import os
import subprocess
import sys

import pytest

from vit_jax.errors import UserError
from vit_jax.runs import RunDir
from vit_jax.runs import lock as run_lock
from vit_jax.runs.lock import run_lock as lock
from vit_jax.training import fit


def test_a_second_training_is_refused_and_told_of_the_first(tiny_config, tmp_path):
    with lock(RunDir(tmp_path / "run"), print):
        for resume in ("auto", "never"):
            with pytest.raises(UserError, match=f"another training .*process {os.getpid()} on "):
                fit(tiny_config({"resume": resume}), tmp_path / "run")
    assert os.listdir(tmp_path) == ["run"] and os.listdir(tmp_path / "run") == ["lock"]
    with lock(RunDir(tmp_path / "run"), print):
        pass  # it was given back


def test_a_killed_training_leaves_no_lock(tmp_path):
    program = (
        "import fcntl, os, signal, sys\n"
        "file = open(sys.argv[1], 'a')\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(RunDir(tmp_path).lock_file)])
    assert done.returncode == -9
    with lock(RunDir(tmp_path), print):
        assert RunDir(tmp_path).lock_file.read_text().startswith(f"process {os.getpid()} on ")


def test_where_there_are_no_locks_training_goes_on_with_a_warning(tmp_path, monkeypatch):
    def no_locks(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(run_lock.fcntl, "flock", no_locks)
    warnings = []
    with lock(RunDir(tmp_path), warnings.append):
        pass
    assert len(warnings) == 1 and "has no locks (No locks available)" in warnings[0]


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(UserError, match="the run folder .*file/run cannot be written"),
        lock(RunDir(tmp_path / "file" / "run"), print),
    ):
        pass
