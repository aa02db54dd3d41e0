"""Steps that were not finite: what the log says of them, and the end of a run that has diverged."""

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax.errors import Diverged
from vit_jax.runs import RunDir
from vit_jax.text import counted
from vit_jax.training.state import NonfiniteSteps


class DivergenceCheck:
    """Check that ends a run after too many nonfinite steps in a row.

    run: for the message. most: nonfinite steps in a row with which the run has diverged.
    """

    def __init__(self, run: RunDir, most: int):
        self.run = run
        self.most = most
        self._previous: NonfiniteSteps | None = None

    def check(self, nonfinite_steps: NonfiniteSteps) -> None:
        """Raise Diverged if a run has diverged, before its checkpoint replaces the good ones."""
        bad = jax.device_get(nonfinite_steps)
        if bad.longest < self.most:
            return
        steps = self.run.steps()
        kept = (
            f"the last checkpoint is of step {steps[-1]}" if steps else "no checkpoint was written"
        )
        raise Diverged(
            f"training has diverged: {bad.longest} steps in a row, up to step {bad.last}, were "
            f"skipped because {bad.CAUSES[bad.cause]} was not finite; {kept}. Lower "
            "optimizer.learning_rate, lengthen schedule.warmup, or clip at a smaller norm with "
            "optimizer.clip, and train in another run folder (--workdir)"
        )

    def check_previous(self, nonfinite_steps: NonfiniteSteps) -> None:
        """Check the counts of the last call, which have arrived by now, and keep a copy of these.

        These would have to be waited for, and the device would idle meanwhile.
        """
        previous, self._previous = self._previous, jax.tree.map(jnp.copy, nonfinite_steps)
        if previous is not None:
            self.check(previous)


def skipped_steps(
    nonfinite_steps: NonfiniteSteps, lines: Iterable[Mapping[str, Any]]
) -> tuple[dict[str, Any], str]:
    """Return log fields and a warning on nonfinite steps; both are empty if there were none.

    lines: of the log so far, whose steps do not count again.
    """
    bad = jax.device_get(nonfinite_steps)
    count = int(bad.total) - sum(line.get("skipped", 0) for line in lines)
    if not count:
        return {}, ""
    cause = bad.CAUSES[bad.cause]
    fields = {"skipped": count, "skipped_last": int(bad.last), "skipped_cause": cause}
    return fields, (
        f"{counted(count, 'step')} skipped, the last one step {bad.last}, because {cause} was not "
        "finite"
    )
