"""Alternating timing of several implementations, each in its own process.

- Two frameworks in one process share threads and memory pools. Here each has its own, and all
  except the timed one wait.
- They are timed one after the other in rounds, in alternating order. The fastest run of a turn
  counts, since other load on a machine can only slow it down. Ratios are computed within a round,
  under similar load; their median and range are reported.
- Memory settings of the C library are read when a process starts, so each setting has its own
  processes; page faults and time in the kernel are reported with the times.
- Every process also times a plain matrix product in each round. Utilisation is a model's FLOP/s
  divided by the fastest of these, also within a round.
"""

import argparse
import math
import multiprocessing
import os
import resource
import statistics
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from benchmarks.peers import OURS, PEERS, TIMM, Case, check_installed, product_rate
from vit_jax.errors import UserError
from vit_jax.process_setup import TUNABLE, huge_page_mode

ROUND_SECONDS = 1.0  # minimum duration of a turn in a round, at least one run
TABLE_HEAD = (
    "| case | memory | implementation | ms | images/s | speed by {} | lowest-highest | utilisation "
    "| page faults | ms in the kernel |\n"
    "|---|---|---|---:|---:|---:|---:|---:|---:|---:|"
)
# Memory settings by name: value of the environment variable for the C library.
MEMORY = {"as it is": "", "huge pages": f"{TUNABLE}=1"}


class Candidate(Protocol):
    """One implementation of one case, ready to run.

    flops: floating point operations of one run.
    """

    flops: int

    def outputs(self) -> dict[str, np.ndarray]:
        """Return the outputs that must agree between all implementations."""
        ...

    def seconds(self, runs: int) -> float:
        """Return the time of so many runs, from the first call to the last result."""
        ...


Enter = Callable[[str, Case], Candidate]  # arguments: name of a peer, case


class Turn(NamedTuple):
    """Measurement of one run: seconds, page faults, and CPU seconds in the kernel."""

    seconds: float
    faults: int
    kernel: float


class Row(NamedTuple):
    """Measurements of one implementation: the fastest run and the FLOP/s of each round."""

    peer: str
    turns: list[Turn]
    product_rates: list[float]

    @property
    def seconds(self) -> list[float]:
        """Return the time of the fastest run of each round."""
        return [turn.seconds for turn in self.turns]


def add_options(parser: argparse.ArgumentParser, cases: Sequence[Case]) -> None:
    """Add the options that all such benchmarks have."""
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--cases",
        nargs="+",
        choices=[case.name for case in cases],
        metavar="CASE",
        help="any of %(choices)s (default: all)",
    )
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=[peer for peer in PEERS if peer != OURS],
        default=[peer for peer in PEERS if peer != OURS],
        help="implementations to compare with (default: all)",
    )
    parser.add_argument("--rounds", type=int, default=9, help="number of rounds")
    parser.add_argument("--threads", type=int, default=cores, help="threads of each process")
    parser.add_argument(
        "--memory",
        nargs="+",
        choices=list(MEMORY),
        default=list(MEMORY),
        help="memory settings of all processes (default: all)",
    )
    parser.add_argument("--quick", action="store_true", help="a tiny model, to check that it runs")


def compare_chosen(enter: Enter, cases: Sequence[Case], tolerance: float, options) -> None:
    """Compare the cases that the options name, or all; a UserError ends the process."""
    named = [case for case in cases if case.name in (options.cases or ())]
    try:
        compare(enter, named or cases, tolerance, options)
    except UserError as error:
        sys.exit(f"error: {error}")


def compare(enter: Enter, cases: Sequence[Case], tolerance: float, options) -> None:
    """Check that all outputs agree, time them in turn, and print a Markdown table.

    Args:
        enter: creates a candidate, in its own process.
        tolerance: maximum difference of outputs, relative to the largest value.

    Raises:
        UserError: a peer is not installed.
        ArithmeticError: two implementations compute different outputs.
    """
    check_installed(options.peers)
    # Inherited by the processes, and respected by JAX and torch.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    print(
        f"{options.threads} threads, {options.rounds} rounds, load {os.getloadavg()[0]:.1f}, "
        f"transparent huge pages: {huge_page_mode() or 'unknown'}"
    )
    reference = TIMM if TIMM in options.peers else [*options.peers, OURS][0]
    print(TABLE_HEAD.format(PEERS[reference]), flush=True)
    for case in cases:
        for memory in options.memory:
            rows, flops = compare_case(enter, case, memory, tolerance, options)
            print(format_rows(case, memory, flops, rows, reference), flush=True)


def compare_case(
    enter: Enter, case: Case, memory: str, tolerance: float, options
) -> tuple[list[Row], int]:
    """Measure each implementation under one memory setting; return also the FLOPs of a run."""
    os.environ["GLIBC_TUNABLES"] = MEMORY[memory]  # read by processes when they start
    workers = [Worker(peer, enter) for peer in (OURS, *options.peers)]
    try:
        flops = ask_all(workers, "enter", case)[OURS]
        check_equal(case, ask_all(workers, "outputs"), tolerance)
        return take_turns(workers, options.rounds), flops
    finally:
        for worker in workers:
            worker.end()


def check_equal(case: Case, outputs: dict[str, dict[str, np.ndarray]], tolerance: float) -> None:
    """Raise ArithmeticError unless all outputs equal those of this library, up to rounding."""
    for peer, theirs in outputs.items():
        for name, ours in outputs[OURS].items():
            difference = np.abs(theirs[name] - ours).max() / np.abs(ours).max()
            if not difference <= tolerance:
                raise ArithmeticError(
                    f"{case.name}: {name} of {PEERS[peer]} differs from this library's by "
                    f"{difference:.1e} of the largest value; times would not be comparable"
                )


def take_turns(workers: "Sequence[Worker]", rounds: int) -> list[Row]:
    """Time all workers in every round, in an order that alternates between rounds."""
    once = workers[0].ask("seconds")
    runs = max(1, math.ceil(ROUND_SECONDS / once.seconds))
    rows = [Row(worker.peer, [], []) for worker in workers]
    turns = list(zip(workers, rows, strict=True))
    for number in range(rounds):
        for worker, row in turns if number % 2 == 0 else reversed(turns):
            row.turns.append(min(worker.ask("seconds") for _ in range(runs)))
            row.product_rates.append(max(worker.ask("product_rate") for _ in range(3)))
    return rows


def format_rows(case: Case, memory: str, flops: int, rows: Sequence[Row], reference: str) -> str:
    """Format one line of the table per implementation; ratios are to the peer `reference`."""
    (compared,) = (row for row in rows if row.peer == reference)
    peaks = [max(rates) for rates in zip(*(row.product_rates for row in rows), strict=True)]
    lines = []
    for row in rows:
        milliseconds = 1e3 * statistics.median(row.seconds)
        rounds = zip(compared.seconds, row.seconds, strict=True)
        ratios = [theirs / own for theirs, own in rounds]
        utilisation = statistics.median(
            flops / seconds / peak for seconds, peak in zip(row.seconds, peaks, strict=True)
        )
        cells = (
            case.name,
            memory,
            PEERS[row.peer],
            f"{milliseconds:.1f}",
            f"{1e3 * case.batch / milliseconds:.1f}",
            f"{statistics.median(ratios):.2f}",
            f"{min(ratios):.2f}-{max(ratios):.2f}",
            f"{utilisation:.0%}",
            f"{statistics.median(turn.faults for turn in row.turns):,.0f}",
            f"{1e3 * statistics.median(turn.kernel for turn in row.turns):.0f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


class Worker:
    """Process that holds one implementation at a time and executes requests."""

    def __init__(self, peer: str, enter: Enter):
        self.peer = peer
        context = multiprocessing.get_context("spawn")  # forks of a process with JAX may hang
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, peer, enter), daemon=True)
        self._process.start()
        theirs.close()  # so that the pipe closes with the process

    def ask(self, what: str, *arguments: Any) -> Any:
        """Send a request and wait for the result; see `answer`.

        what: "enter", with a case: prepare it, and return its floating point operations;
            "seconds": run once, and return a `Turn`; "product_rate"; or "outputs".
        """
        self.begin(what, *arguments)
        return self.answer()

    def begin(self, what: str, *arguments: Any) -> None:
        """Send a request without waiting."""
        self._pipe.send((what, arguments))

    def answer(self) -> Any:
        """Return the result; raise RuntimeError with the traceback of the process."""
        try:
            answer, fault = self._pipe.recv()
        except EOFError:
            raise RuntimeError(f"the process of {PEERS[self.peer]} has died") from None
        if fault:
            raise RuntimeError(f"in the process of {PEERS[self.peer]}:\n{fault}")
        return answer

    def end(self) -> None:
        """End the process in any state."""
        self._pipe.close()  # if it waits for a request, it then exits by itself
        self._process.join(timeout=5)
        self._process.terminate()
        self._process.join()


def ask_all(workers: Sequence[Worker], what: str, *arguments: Any) -> dict[str, Any]:
    """Send a request to all at once; return their results by peer name."""
    for worker in workers:
        worker.begin(what, *arguments)
    return {worker.peer: worker.answer() for worker in workers}


def _serve(pipe, peer: str, enter: Enter) -> None:
    contestant, rate = None, None
    while True:
        try:
            what, arguments = pipe.recv()
        except EOFError:
            return
        try:
            if what == "enter":
                (case,) = arguments
                contestant, rate = enter(peer, case), product_rate(peer, case)
                answer = contestant.flops
            elif what == "product_rate":
                answer = rate()
            elif what == "seconds":
                answer = _run_once(contestant)
            else:
                answer = contestant.outputs()
        except Exception:
            pipe.send((None, traceback.format_exc()))
        else:
            pipe.send((answer, None))


def _run_once(contestant: Candidate) -> Turn:
    before = resource.getrusage(resource.RUSAGE_SELF)
    seconds = contestant.seconds(1)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return Turn(seconds, after.ru_minflt - before.ru_minflt, after.ru_stime - before.ru_stime)
