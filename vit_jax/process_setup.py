"""Process setup for speed on a CPU, before JAX or any other large library is imported.

Notable:
- XLA allocates its temporary buffer, 100 to 500 MB, anew for every execution. glibc maps such a
  block and unmaps it again, so every step touches fresh memory, 4 KiB at a time: 77,000 page faults
  in a training step of a small ViT (28 pixels, width 64, batch 128).
- If the system gives transparent huge pages on request (`madvise`, the default of most
  distributions), glibc 2.35 requests them when `GLIBC_TUNABLES` is set at process start: then the
  step has 460 page faults.
- A running process cannot change this setting, so `restart_with_huge_pages` executes the same
  command again in the same process (its id, files and limits stay), before anything is imported.
- `docs/speed.md` has the measurements, and the attempts that did not help: a heap that is never
  returned to the system, other XLA flags. `VIT_JAX_SETUP=off` disables the restart.

This file imports nothing large.
"""

import os
import sys
from pathlib import Path

SWITCH = "VIT_JAX_SETUP"  # "off": leave the process as it is
TUNABLE = "glibc.malloc.hugetlb"
HUGE_PAGES_FILE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_OLDEST_GLIBC = (2, 35)  # first version with this tunable
# Modules of debuggers; a restart under a debugger would lose its breakpoints.
_DEBUGGERS = ("pydevd", "debugpy", "pdb")


def setup_cpu() -> str:
    """Return one sentence of advice that would make this process faster, or "".

    For notebooks and other programs that are running already: memory is set up when a process
    starts, so the sentence names the environment variable to set before starting Python.
    """
    if not wants_huge_pages():
        return ""
    return (
        f"training on this CPU is faster with huge pages: set {tunables_with_huge_pages()!r} as "
        "GLIBC_TUNABLES in the environment before Python (for a notebook: before Jupyter) starts"
    )


def restart_with_huge_pages() -> None:
    """Execute the command of this process again with huge pages if that makes it faster.

    Call it first in a program. After a restart it does not return. It does nothing if the system
    has no huge pages or gives them to every process, if the environment sets the tunable already,
    or under a debugger or profiler.
    """
    if not wants_huge_pages() or is_observed():
        return
    environment = {**os.environ, "GLIBC_TUNABLES": tunables_with_huge_pages()}
    try:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    except OSError:  # run without huge pages
        return


def wants_huge_pages() -> bool:
    """Return whether huge pages are available, not in use, and not configured already."""
    return (
        os.environ.get(SWITCH, "").lower() != "off"
        and TUNABLE not in os.environ.get("GLIBC_TUNABLES", "")
        and huge_page_mode() == "madvise"
        and has_tunable()
    )


def huge_page_mode() -> str:
    """Mode of the system's transparent huge pages: "always", "madvise", "never", "" (unknown)."""
    try:
        modes = HUGE_PAGES_FILE.read_text()  # such as "always [madvise] never"
    except OSError:
        return ""
    return modes.partition("[")[2].partition("]")[0]


def has_tunable() -> bool:
    """Return whether this process runs on a glibc that reads the tunable."""
    try:
        library, version = os.confstr("CS_GNU_LIBC_VERSION").split()  # such as "glibc 2.36"
        return library == "glibc" and tuple(map(int, version.split(".")[:2])) >= _OLDEST_GLIBC
    except (AttributeError, ValueError, OSError):  # of another library, or another system
        return False


def tunables_with_huge_pages() -> str:
    """Return the environment's `GLIBC_TUNABLES` with huge pages added."""
    present = os.environ.get("GLIBC_TUNABLES", "")
    return ":".join(filter(None, (present, f"{TUNABLE}=1")))


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def is_observed() -> bool:
    """Return whether a debugger, profiler or coverage tool follows this process."""
    monitoring = getattr(sys, "monitoring", None)  # interface of such tools since Python 3.12
    return (
        sys.gettrace() is not None
        or sys.getprofile() is not None
        or any(monitoring.get_tool(number) for number in range(6) if monitoring)
        or any(name in sys.modules for name in _DEBUGGERS)
        or not (sys.executable and sys.orig_argv)
    )
