"""Progress of long work: bars on a terminal, elsewhere a line every ten seconds.

with progress_bars() as show:
    show("looking at train", 300, 1437)
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vit_jax.text import printable, table_cell

Show = Callable[[str, int, int | None], None]  # (task, done, total)

_SECONDS = 10.0  # between two lines


@contextmanager
def progress_bars(unit: str = "images") -> Iterator[Show]:
    """Show progress on standard error; each task has a bar of its own.

    Args:
        unit: plural noun of the counted items.
    """
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    tasks, printed = {}, time.monotonic()
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bars:

        def show(what: str, done: int, total: int | None) -> None:
            nonlocal printed
            if what not in tasks:
                tasks[what] = bars.add_task(table_cell(what), total=total)
            bars.update(tasks[what], completed=done, total=total)
            if not console.is_terminal and time.monotonic() - printed >= _SECONDS:
                printed = time.monotonic()
                of = "" if total is None else f" of {total:,}"
                line = printable(f"{what}: {done:,}{of} {unit}")
                console.print(line, soft_wrap=True, markup=False)

        yield show
