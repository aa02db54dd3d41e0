"""A process that trains and says what it is doing: python phased_run.py ARGS...

Prints a line for every phase that begins: start-up, compilation, step, saving (a checkpoint is
being written in the background), evaluation (once for each batch), logging (a line of the log has
been written). The arguments are those of train.py.
"""

import sys
from pathlib import Path


def say(phase):
    print(phase, flush=True)


def announce(say):
    """From here on, training in this process calls `say` with every phase that begins."""
    from vit_jax.training.checkpointing import checkpoints
    from vit_jax.training.logging import reporter
    from vit_jax.training.setup import experiment

    shown = reporter.Reporter.progress
    batches = experiment.Experiment.eval_batches
    saved = checkpoints.Checkpoints.save
    made = experiment.Experiment.train_step
    written = reporter.MetricsLog.write

    def train_step(self):
        step, calls = made(self), 0

        def counted(*arguments):
            nonlocal calls
            calls += 1
            if calls == 1:
                say("compilation")
            return step(*arguments)

        return counted

    def progress(self, step, wait_for):
        shown(self, step, wait_for)
        say("step")

    def eval_batches(self, source, **options):
        for batch in batches(self, source, **options):
            yield batch
            say("evaluation")

    def save(self, step, *arguments):
        saved(self, step, *arguments)
        say("saving")

    def write(self, line):
        written(self, line)
        say("logging")

    experiment.Experiment.train_step = train_step
    experiment.Experiment.eval_batches = eval_batches
    reporter.Reporter.progress = progress
    checkpoints.Checkpoints.save = save
    reporter.MetricsLog.write = write


if __name__ == "__main__":
    say("start-up")
    sys.path.insert(0, str(Path(__file__).parents[2]))

    from vit_jax.cli import main

    announce(say)
    sys.exit(main(["train", *sys.argv[1:]]))
