"""Scalars in an event file for TensorBoard.

The file format is tensorboardX's. Its `SummaryWriter` is not used, since it writes in a thread: an
error there, such as a full disk, is never reported, and the run then waits for the dead thread.
"""

import time
from pathlib import Path

FLUSH_SECONDS = 10.0  # how late TensorBoard may see a value; each flush waits for the disk


class TensorBoardFile:
    """New event file in a folder, which is created if missing. Raises OSError like files."""

    def __init__(self, folder: Path):
        from tensorboardX.event_file_writer import EventsWriter  # a tenth of a second to import

        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventsWriter(str(folder / "events"))
        self._flushed = time.monotonic()

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """Add one value of a curve."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        self._writer.write_event(
            Event(step=step, wall_time=time.time(), summary=scalar(name, value))
        )
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._writer.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        """Write buffered values to disk and close the file."""
        self._writer.close()
