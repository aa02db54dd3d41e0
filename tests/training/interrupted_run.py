"""A process that trains and gets Ctrl-C during a given step: python interrupted_run.py STEP ARGS...

STEP 0 means undisturbed. The arguments are those of train.py.
"""

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from vit_jax.cli import main
from vit_jax.training import reporting

stop_at = int(sys.argv[1])
shown = reporting.Reporter.progress


def progress(self, step, wait_for):
    shown(self, step, wait_for)
    if step == stop_at:
        os.kill(os.getpid(), signal.SIGINT)


reporting.Reporter.progress = progress
sys.exit(main(["train", *sys.argv[2:]]))
