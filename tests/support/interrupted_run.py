"""A process that trains and gets signals: python interrupted_run.py SIGNAL WHERE STEP ARGS...

WHERE is one place or several, such as step+save:

    data       while the data are opened, before the run folder is touched
    compile    during the first step of the process, which compiles
    step       right after a step
    evaluate   inside an evaluation
    save       as a checkpoint has begun to be written
    exit       as the process ends

STEP is the last step before it, and -1 means undisturbed. The arguments are those of train.py.
"""

import os
import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from vit_jax.startup import leave_on_signals

leave_on_signals()

from vit_jax import cli  # noqa: E402
from vit_jax.commands import train  # noqa: E402
from vit_jax.data import from_config as data  # noqa: E402
from vit_jax.training.checkpointing import checkpoints  # noqa: E402
from vit_jax.training.logging import reporter  # noqa: E402
from vit_jax.training.setup import experiment  # noqa: E402

name, places, stop_at = sys.argv[1], sys.argv[2].split("+"), int(sys.argv[3])
last_step = 0


def send_signal_if(here):
    if here in places and last_step == stop_at:
        os.kill(os.getpid(), signal.Signals[name])


opened = data.open_source
made = experiment.Experiment.train_step
shown = reporter.Reporter.progress
batches = experiment.Experiment.eval_batches
saved = checkpoints.Checkpoints.save
ignored = train.ignore_signals


def open_source(*arguments, **options):
    send_signal_if("data")
    return opened(*arguments, **options)


def train_step(self):
    step = made(self)

    def disturbed(*arguments):
        threading.Timer(0.05, send_signal_if, ["compile"]).start()
        return step(*arguments)

    return disturbed


def progress(self, step, wait_for):
    global last_step
    shown(self, step, wait_for)
    last_step = step
    send_signal_if("step")


def eval_batches(self, source, **options):
    for number, batch in enumerate(batches(self, source, **options)):
        if number == 1:
            send_signal_if("evaluate")
        yield batch


def save(self, step, *arguments):
    saved(self, step, *arguments)
    send_signal_if("save")


def ignore_signals():
    ignored()
    send_signal_if("exit")


data.open_source = open_source
experiment.Experiment.train_step = train_step
experiment.Experiment.eval_batches = eval_batches
reporter.Reporter.progress = progress
checkpoints.Checkpoints.save = save
train.ignore_signals = ignore_signals

if __name__ == "__main__":
    sys.exit(cli.main(["train", *sys.argv[4:]]))
