"""Entry point of the command line: `python -m vit_jax COMMAND`, or `vit_jax COMMAND`."""

import sys

from vit_jax.process_setup import restart_with_huge_pages
from vit_jax.startup import leave_on_signals


def run() -> int:
    """Set up the process, run the command in its arguments, and return the exit code."""
    restart_with_huge_pages()
    leave_on_signals()  # before the import below, which takes seconds

    from vit_jax.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(run())
