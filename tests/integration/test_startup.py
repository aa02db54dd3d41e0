"""Signals in the seconds before a program has done anything."""

import os
import signal
import subprocess
import sys

import pytest

from tests.folders import ROOT
from vit_jax.startup import STOPPED, stopping_signals


@pytest.fixture
def run_stopped(tmp_path):
    """Starts a program that gets a signal while it imports typer, the first of its libraries."""

    def run(arguments, name, prefix=()):
        (tmp_path / "typer.py").write_text(
            f"import os, signal\nos.kill(os.getpid(), signal.{name})\nraise ImportError('half')\n"
        )
        # These tests may themselves run under nohup, and what it ignores is inherited.
        before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
        try:
            return subprocess.run(
                [*prefix, sys.executable, *arguments],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(tmp_path)},
                capture_output=True,
                text=True,
            )
        finally:
            signal.signal(signal.SIGHUP, before)

    return run


@pytest.mark.parametrize("door", [["train.py"], ["-m", "vit_jax", "train"]])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_during_the_imports_is_one_sentence(run_stopped, door, name):
    done = run_stopped(door, name)
    assert (done.returncode, done.stderr) == (75, f"{STOPPED}\n")


def test_a_program_that_must_outlive_its_terminal_does(run_stopped):
    done = run_stopped(["train.py"], "SIGHUP", prefix=["nohup"])
    assert done.returncode == 1 and "ImportError: half" in done.stderr


def test_a_hangup_that_is_ignored_is_not_listened_to():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert stopping_signals() == [signal.SIGINT, signal.SIGTERM]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_importing_the_package_imports_no_library():
    program = "import sys, vit_jax.startup; print({'jax', 'flax', 'numpy'} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_every_public_name_is_there():
    import vit_jax

    for name in vit_jax.__all__:
        assert getattr(vit_jax, name).__name__ == name
        assert name in dir(vit_jax)
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        vit_jax.lod  # noqa: B018
