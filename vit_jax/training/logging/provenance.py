"""Provenance of a run besides its configuration: the command and the time."""

import os
import shlex
import sys
from datetime import UTC, datetime

DATE = "%Y-%m-%d %H:%M UTC"


def process_origin() -> dict[str, str]:
    """Return the `command` of this process, quoted for a shell, and when it `begun`."""
    program, *arguments = sys.orig_argv
    command = shlex.join([os.path.basename(program), *arguments])
    return {"command": command, "begun": datetime.now(UTC).strftime(DATE)}
