"""Setup of the process: what is asked for, and that a restart is the same command."""

import os
import signal
import subprocess
import sys

import pytest

from tests.folders import ROOT
from vit_jax import process_setup

WANTED = "glibc.malloc.hugetlb=1"
# A program that may restart itself, on a system whose mode is in the file given first.
PROGRAM = """
import os, signal, sys
from pathlib import Path
from vit_jax import process_setup

process_setup.HUGE_PAGES_FILE = Path(sys.argv[1])
process_setup.has_tunable = lambda: True
print("start", os.getpid(), *sys.argv[2:], flush=True)
process_setup.restart_with_huge_pages()
heard = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
print("end", os.getpid(), os.environ.get("GLIBC_TUNABLES", "-"), sys.stdin.read(), heard)
sys.exit(3)
"""


@pytest.fixture
def run(tmp_path):
    """Runs the program as a script and gives its lines; its exit code must be its own."""
    (tmp_path / "mode").write_text("always [madvise] never\n")
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(*prefix, tunables="", switch="", code=3):
        done = subprocess.run(
            [sys.executable, *prefix, tmp_path / "program.py", tmp_path / "mode", "a b", "--c=1"],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "GLIBC_TUNABLES": tunables,
                process_setup.SWITCH: switch,
            },
            input="typed",
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stderr
        return [line.split() for line in done.stdout.splitlines()]

    return run


def test_a_restart_is_the_same_process_command_and_input(run):
    first, second, end = run()
    assert first == second == ["start", first[1], "a", "b", "--c=1"]
    assert end[:4] == ["end", first[1], WANTED, "typed"]


def test_other_settings_of_the_allocator_stay(run):
    assert run(tunables="glibc.malloc.check=0")[-1][2] == f"glibc.malloc.check=0:{WANTED}"


def test_the_environment_decides_where_it_says_anything(run):
    start, end = run(tunables="glibc.malloc.hugetlb=0")
    assert end[2] == "glibc.malloc.hugetlb=0"
    start, end = run(switch="off")
    assert end[1] == start[1] and "hugetlb" not in end[2]


def test_a_program_under_a_profiler_is_not_restarted(run):
    lines = run("-m", "cProfile", code=0)  # the profiler ends with an exit code of its own
    assert sum(line[:1] == ["start"] for line in lines) == 1


def test_a_signal_that_is_ignored_stays_so(run):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run()[-1][-1] == "False"
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("content", "mode"),
    [
        ("always [madvise] never\n", "madvise"),
        ("[always] madvise never\n", "always"),
        ("always madvise [never]\n", "never"),
        ("", ""),
    ],
)
def test_huge_pages_are_asked_for_only_where_the_system_wants_to_be_asked(
    tmp_path, monkeypatch, content, mode
):
    monkeypatch.setattr(process_setup, "HUGE_PAGES_FILE", tmp_path / "mode")
    monkeypatch.setattr(process_setup, "has_tunable", lambda: True)
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.delenv(process_setup.SWITCH, raising=False)
    (tmp_path / "mode").write_text(content)
    assert process_setup.huge_page_mode() == mode
    assert process_setup.wants_huge_pages() == (mode == "madvise")
    assert (WANTED in process_setup.setup_cpu()) == (mode == "madvise")


def test_a_system_without_the_file_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(process_setup, "HUGE_PAGES_FILE", tmp_path / "none")
    assert process_setup.huge_page_mode() == ""
    assert not process_setup.wants_huge_pages()


@pytest.mark.parametrize(
    ("version", "has"),
    [("glibc 2.36", True), ("glibc 2.34", False), ("musl 1.2", False), (None, False)],
)
def test_only_a_glibc_that_reads_the_tunable_counts(monkeypatch, version, has):
    monkeypatch.setattr(os, "confstr", lambda name: version)
    assert process_setup.has_tunable() == has


def test_a_debugger_is_noticed(monkeypatch):
    monkeypatch.setattr(sys, "gettrace", lambda: None)  # of a coverage tool
    monkeypatch.delitem(sys.modules, "pdb", raising=False)  # of pytest
    assert not process_setup.is_observed()
    monkeypatch.setitem(sys.modules, "debugpy", sys)
    assert process_setup.is_observed()
