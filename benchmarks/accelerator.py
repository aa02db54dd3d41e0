"""What a GPU or TPU does with this library, in one table and a few minutes.

    python -m benchmarks.accelerator                        six minutes on one GPU
    python -m benchmarks.accelerator --minutes 2            what fits into two
    python -m benchmarks.accelerator --parts losses memory  some of it
    python -m benchmarks.accelerator --tiny                 to see that it runs, on any device

Each part runs in a process of its own: one that fails, hangs or takes all memory gives a row that
says so, and the next begins with the device to itself. Rows are printed as they are measured, so
that a run that is cut short has given what it knows. A part that no longer fits into the time is
skipped, and one that exceeds it is stopped. Nothing is fetched from the network.
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
# In the order of what one wants to know first; `accelerator_parts` has a function for each.
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
LEAST_SECONDS = 15.0  # a part starts JAX and compiles; with less time left it is not begun


class Row(NamedTuple):
    """One line of the table; empty cells are what does not apply."""

    what: str
    measured: str = ""
    compared: str = ""
    ratio: str = ""
    note: str = ""

    def __str__(self) -> str:
        cells = (str(cell).replace("|", "/").replace("\n", " ") for cell in self)
        return f"| {' | '.join(cells)} |"


def run_parts(names: list[str], minutes: float, tiny: bool) -> Iterator[Row]:
    """Yields the rows of each part, and one for each that fails or has no time."""
    end = time.monotonic() + 60 * minutes
    for name in names:
        left = end - time.monotonic()
        if left < LEAST_SECONDS:
            yield Row(name, note=f"skipped: {max(left, 0):.0f} s are left of {minutes:g} minutes")
            continue
        command = [sys.executable, "-m", "benchmarks.accelerator", "--run", name]
        yield from run_part(name, [*command, *(["--tiny"] if tiny else [])], left)


def run_part(name: str, command: list[str], seconds: float) -> Iterator[Row]:
    """Yields the rows that a process prints, each a list in JSON, and one if it fails."""
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
        yield Row(name, note=f"stopped: the {seconds:.0f} s that were left are over")
    elif code:
        last = next((line.strip() for line in reversed(errors) if line.strip()), "no message")
        yield Row(name, note=f"failed with code {code}: {last[:300]}")


def _kill(process: subprocess.Popen) -> None:
    """Ends a process and those that it has started, which have a group of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _row_of(line: str) -> Row | None:
    """The row that a line of a part is; None for anything else that a library prints."""
    try:
        cells = json.loads(line)
    except ValueError:
        return None
    return Row(*cells) if isinstance(cells, list) and len(cells) == len(Row._fields) else None


def print_part(name: str, tiny: bool) -> None:
    """Measures one part in this process, and prints its rows as `run_part` reads them."""
    from benchmarks.accelerator_parts import PARTS

    for row in PARTS[name](tiny):
        print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=6.0, help="for all of it (default: 6)")
    parser.add_argument("--parts", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--tiny", action="store_true", help="small sizes: numbers mean nothing")
    parser.add_argument("--run", choices=NAMES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        return print_part(options.run, options.tiny)
    print(HEAD, flush=True)
    for row in run_parts(options.parts, options.minutes, options.tiny):
        print(row, flush=True)


if __name__ == "__main__":
    main()
