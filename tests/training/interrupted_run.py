"""A process that trains and gets a signal: python interrupted_run.py SIGNAL WHERE STEP ARGS...

WHERE is `step`, right after a step, `evaluate`, inside the evaluation of that step, or `save`, as
the checkpoint of that step has begun to be written. STEP 0 means undisturbed. The arguments are
those of train.py.
"""

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from vit_jax.cli import main
from vit_jax.training import checkpoints, experiment, reporting

name, where, stop_at = sys.argv[1], sys.argv[2], int(sys.argv[3])
last_step = 0


def send_signal_if(here):
    if where == here and last_step == stop_at:
        os.kill(os.getpid(), signal.Signals[name])


shown = reporting.Reporter.progress
batches = experiment.Experiment.eval_batches
saved = checkpoints.Checkpoints.save


def progress(self, step, wait_for):
    global last_step
    shown(self, step, wait_for)
    last_step = step
    send_signal_if("step")


def eval_batches(self, source):
    for number, batch in enumerate(batches(self, source)):
        if number == 1:
            send_signal_if("evaluate")
        yield batch


def save(self, step, *arguments):
    saved(self, step, *arguments)
    send_signal_if("save")


reporting.Reporter.progress = progress
experiment.Experiment.eval_batches = eval_batches
checkpoints.Checkpoints.save = save
sys.exit(main(["train", *sys.argv[4:]]))
