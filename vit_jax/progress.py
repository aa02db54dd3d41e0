"""Progress of long work: bars on a terminal, and otherwise a line at every tenth.

with progress_bars() as show:
    show("looking at train", 300, 1437)
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Show = Callable[[str, int, int], None]  # what is done, pictures done, of how many

_TENTHS = 10


@contextmanager
def progress_bars() -> Iterator[Show]:
    """Shows progress on the standard error; each kind of work has a bar of its own."""
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    tasks, told = {}, {}
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bars:

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)
            tenth = done * _TENTHS // max(1, total)
            if not console.is_terminal and tenth > told.get(what, 0):
                told[what] = tenth
                console.print(f"{what}: {done:,} of {total:,} pictures", soft_wrap=True)

        yield show
