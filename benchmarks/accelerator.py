"""Benchmarks of this library on a GPU or TPU, in one table and a few minutes.

    python -m benchmarks.accelerator                        six minutes on one GPU
    python -m benchmarks.accelerator --minutes 2            the parts that fit into two
    python -m benchmarks.accelerator --parts losses memory  selected parts
    python -m benchmarks.accelerator --tiny                 to check that it runs, on any device

Each part runs in its own process: a part that fails, hangs or uses up all memory becomes a row with
the reason, and the next part has the device to itself. Rows are printed as they are measured, so an
interrupted run has already printed its results. A part that no longer fits into the time is
skipped, and one that exceeds it is stopped. Nothing is downloaded.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

HEAD = "| what | measured | compared with | ratio | note |\n|---|---|---|---|---|"
# Ordered by importance; `accelerator_parts` has a function for each.
NAMES = (
    "environment",
    "peak",
    "losses",
    "attention",
    "memory",
    "ViT-B/16",
    "input",
    "ViT-L/16",
)
LEAST_SECONDS = 15.0  # a part starts JAX and compiles; with less time left it is not started


class Row(NamedTuple):
    """Row of the table; cells that do not apply are empty."""

    what: str
    measured: str = ""
    compared: str = ""
    ratio: str = ""
    note: str = ""

    def __str__(self) -> str:
        cells = (str(cell).replace("|", "/").replace("\n", " ") for cell in self)
        return f"| {' | '.join(cells)} |"


def run_parts(names: list[str], minutes: float, tiny: bool) -> Iterator[Row]:
    """Yield the rows of each part, and one for each that fails or is skipped."""
    end = time.monotonic() + 60 * minutes
    for name in names:
        left = end - time.monotonic()
        if left < LEAST_SECONDS:
            yield Row(name, note=f"skipped: {max(left, 0):.0f} s of {minutes:g} minutes are left")
            continue
        command = [sys.executable, "-m", "benchmarks.accelerator", "--run", name]
        yield from run_part(name, [*command, *(["--tiny"] if tiny else [])], left)


def run_part(name: str, command: list[str], seconds: float) -> Iterator[Row]:
    """Yield the rows that a process prints, each a list in JSON, and one if it fails."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "errors": "replace"}
    process = subprocess.Popen(command, text=True, start_new_session=True, **pipes)
    errors: list[str] = []
    reader = threading.Thread(target=lambda: errors.extend(process.stderr), daemon=True)
    stopped = threading.Event()

    timer = threading.Timer(seconds, lambda: (stopped.set(), _kill(process)))
    reader.start()
    timer.start()
    try:
        for line in process.stdout:
            row = _row_of(line)
            if row is not None:
                yield row
        code = process.wait()
        reader.join(timeout=5)
    finally:
        timer.cancel()
        _kill(process)
    if stopped.is_set():
        yield Row(name, note=f"stopped after the remaining {seconds:.0f} s")
    elif code:
        last = next((line.strip() for line in reversed(errors) if line.strip()), "no message")
        yield Row(name, note=f"failed with code {code}: {last[:300]}")


def _kill(process: subprocess.Popen) -> None:
    """Kill a process and its children, which are in one process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _row_of(line: str) -> Row | None:
    """Parse a row from a line of output; return None for other output."""
    try:
        cells = json.loads(line)
    except ValueError:
        return None
    return Row(*cells) if isinstance(cells, list) and len(cells) == len(Row._fields) else None


def print_part(name: str, tiny: bool) -> None:
    """Measure one part in this process, and print its rows for `run_part`."""
    from benchmarks.accelerator_parts import PARTS

    for row in PARTS[name](tiny):
        print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=6.0, help="total time (default: 6)")
    parser.add_argument("--parts", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument(
        "--tiny", action="store_true", help="small sizes; the numbers are meaningless"
    )
    parser.add_argument("--run", choices=NAMES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        return print_part(options.run, options.tiny)
    print(HEAD, flush=True)
    for row in run_parts(options.parts, options.minutes, options.tiny):
        print(row, flush=True)


if __name__ == "__main__":
    main()
