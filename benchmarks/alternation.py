"""Times implementations of one thing in turn, each alone in a process of its own.

What is notable here:
- Two frameworks in one process share threads and memory pools; here each has its own, and all wait
  but the one that is timed.
- They are timed one after the other, round after round, in an order that turns around. What counts
  of a turn is its fastest run, for what else a machine does can only make one slower. Ratios are
  taken within a round, where all have met much the same load; their median and range are given.
- Memory settings of the C library are read when a process starts, so each of them has processes of
  its own; page faults and time in the kernel stand beside the times.
- Every process also times one plain matrix product in each round. Utilisation is a model's
  arithmetic by the fastest of these, also within a round.
"""

import argparse
import math
import multiprocessing
import os
import resource
import statistics
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from benchmarks.peers import OURS, PEERS, TIMM, Case, check_installed, product_rate
from vit_jax.process_setup import TUNABLE, huge_page_mode

ROUND_SECONDS = 1.0  # an implementation's turn in a round is at least so long, and one run
TABLE_HEAD = (
    "| case | memory | implementation | ms | images/s | speed by {} | lowest-highest | utilisation "
    "| page faults | ms in the kernel |\n"
    "|---|---|---|---:|---:|---:|---:|---:|---:|---:|"
)
# Memory settings by name: the environment variable that both libraries start with.
MEMORY = {"as it is": "", "huge pages": f"{TUNABLE}=1"}


class Candidate(Protocol):
    """One implementation of one case, ready to run.

    flops: floating point operations of one run.
    """

    flops: int

    def outputs(self) -> dict[str, np.ndarray]:
        """What has to be the same for all implementations."""
        ...

    def seconds(self, runs: int) -> float:
        """Time of so many runs, from the first call to the last result."""
        ...


Enter = Callable[[str, Case], Candidate]  # by the name of a peer


class Turn(NamedTuple):
    """What one run took: seconds, page faults, and processor seconds in the kernel."""

    seconds: float
    faults: int
    kernel: float


class Row(NamedTuple):
    """What was measured of one implementation: the fastest run and the FLOP/s of each round."""

    peer: str
    turns: list[Turn]
    product_rates: list[float]

    @property
    def seconds(self) -> list[float]:
        """Time of the fastest run of each round."""
        return [turn.seconds for turn in self.turns]


def add_options(parser: argparse.ArgumentParser, cases: Sequence[Case]) -> None:
    """The options that all such benchmarks have."""
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--cases",
        nargs="+",
        choices=[case.name for case in cases],
        metavar="CASE",
        help="some of %(choices)s (default: all)",
    )
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=[peer for peer in PEERS if peer != OURS],
        default=[peer for peer in PEERS if peer != OURS],
        help="what this library is compared with (default: all)",
    )
    parser.add_argument("--rounds", type=int, default=9, help="how often all are timed")
    parser.add_argument("--threads", type=int, default=cores, help="cores that each may use")
    parser.add_argument(
        "--memory",
        nargs="+",
        choices=list(MEMORY),
        default=list(MEMORY),
        help="memory settings, the same for all that is compared (default: all)",
    )
    parser.add_argument("--quick", action="store_true", help="a tiny model: to see that it runs")


def compare(enter: Enter, cases: Sequence[Case], tolerance: float, options) -> None:
    """Checks that all compute the same, times them in turn, and prints a Markdown table.

    Args:
        enter: makes a contestant, in a process of its own.
        tolerance: how far outputs may differ, as a share of the largest.

    Raises:
        UserError: a peer is not installed.
        ArithmeticError: two implementations do not compute the same.
    """
    check_installed(options.peers)
    # Inherited by the processes, and obeyed by JAX as well as by torch.
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
    """What was measured of each implementation under one memory setting, and FLOPs of a run."""
    os.environ["GLIBC_TUNABLES"] = MEMORY[memory]  # which processes read when they start
    workers = [Worker(peer, enter) for peer in (OURS, *options.peers)]
    try:
        flops = ask_all(workers, "enter", case)[OURS]
        check_equal(case, ask_all(workers, "outputs"), tolerance)
        return take_turns(workers, options.rounds), flops
    finally:
        for worker in workers:
            worker.end()


def check_equal(case: Case, outputs: dict[str, dict[str, np.ndarray]], tolerance: float) -> None:
    """Raises ArithmeticError unless all outputs are those of this library, to rounding."""
    for peer, theirs in outputs.items():
        for name, ours in outputs[OURS].items():
            difference = np.abs(theirs[name] - ours).max() / np.abs(ours).max()
            if not difference <= tolerance:
                raise ArithmeticError(
                    f"{case.name}: {name} of {PEERS[peer]} differs from this library's by "
                    f"{difference:.1e} of the largest; times would not be comparable"
                )


def take_turns(workers: "Sequence[Worker]", rounds: int) -> list[Row]:
    """Times all workers in every round, in an order that turns around from round to round."""
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
    """Lines of the table, one for each implementation; ratios are to the peer `reference`."""
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
    """A process that holds one implementation at a time and does what it is asked."""

    def __init__(self, peer: str, enter: Enter):
        self.peer = peer
        context = multiprocessing.get_context("spawn")  # forks of a process with JAX may hang
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, peer, enter), daemon=True)
        self._process.start()
        theirs.close()  # so that the pipe ends with the process

    def ask(self, what: str, *arguments: Any) -> Any:
        """Has it do something and waits for the result; see `answer`.

        what: "enter", with a case: to prepare it, which gives its floating point operations;
            "seconds": to run once, which gives a `Turn`; "product_rate"; or "outputs".
        """
        self.begin(what, *arguments)
        return self.answer()

    def begin(self, what: str, *arguments: Any) -> None:
        """Has it do something, and does not wait."""
        self._pipe.send((what, arguments))

    def answer(self) -> Any:
        """What came out of it; raises RuntimeError with the traceback of the process."""
        try:
            answer, fault = self._pipe.recv()
        except EOFError:
            raise RuntimeError(f"the process of {PEERS[self.peer]} has died") from None
        if fault:
            raise RuntimeError(f"in the process of {PEERS[self.peer]}:\n{fault}")
        return answer

    def end(self) -> None:
        """Ends the process, whatever it does."""
        self._pipe.close()  # where it waits for a question it then ends by itself, tidily
        self._process.join(timeout=5)
        self._process.terminate()
        self._process.join()


def ask_all(workers: Sequence[Worker], what: str, *arguments: Any) -> dict[str, Any]:
    """Asks all at once; their answers by the names of the peers."""
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
