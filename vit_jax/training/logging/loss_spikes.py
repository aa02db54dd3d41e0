"""Loss spikes: a training loss far above the noise of the preceding log lines.

A spike is worth attention even if training recovers: it may come from bad data, a learning rate at
its limit, or an instability that ends in divergence later (arXiv 2302.05442 reports it in ViT-22B).
"""

import itertools
import math
from collections import deque
from collections.abc import Iterable
from statistics import median
from typing import Any

from vit_jax.runs import TRAIN

DEVIATIONS = 6.0
_LINES = 30  # lines that the noise is estimated from
_FEWEST = 8  # with fewer lines the noise is unknown
_LEVEL = 5  # lines whose median is the level: few, so that it follows a falling curve
# A loss that hardly changes has almost no noise; even then an increase by 1/8 is no spike.
_LEAST_DEVIATION = 0.02
_MAD_TO_DEVIATION = 1.4826  # of a normal distribution


class SpikeDetector:
    """Detector of loss spikes in the training lines of the log.

    The level is the median of the last five losses. The noise is the median absolute deviation of
    the differences from line to line, which a steady fall of the loss leaves alone; it is divided
    by the root of two, since a difference has the noise of two lines.

    Args:
        lines: earlier lines of the log, if a run is resumed.
    """

    def __init__(self, lines: Iterable[dict[str, Any]] = ()):
        self._losses: deque[float] = deque(maxlen=_LINES)
        self._in_spike = False
        for line in lines:
            self.look(line)

    def look(self, line: dict[str, Any]) -> str | None:
        """Return a warning if this training line begins a spike, else None."""
        if line["kind"] != TRAIN or not math.isfinite(line.get("loss", math.nan)):
            return None
        loss, limit = line["loss"], self._limit()
        self._losses.append(loss)
        above = limit is not None and loss > limit
        begins, self._in_spike = above and not self._in_spike, above
        if not begins:
            return None
        usual = median(list(self._losses)[-1 - _LEVEL : -1])
        return (
            f"the loss rose to {loss:.4f} by step {line['step']}, from about {usual:.4f}: more "
            f"than {DEVIATIONS:g} standard deviations of the lines before; if it happens again, "
            "lower optimizer.learning_rate, lengthen schedule.warmup or lower optimizer.clip"
        )

    def _limit(self) -> float | None:
        """Return the loss above which a line is a spike; None while the noise is unknown."""
        if len(self._losses) < _FEWEST:
            return None
        losses = list(self._losses)
        level = median(losses[-_LEVEL:])
        steps = [after - before for before, after in itertools.pairwise(losses)]
        usual = median(steps)
        spread = median(abs(step - usual) for step in steps)
        noise = _MAD_TO_DEVIATION * spread / 2**0.5
        return level + DEVIATIONS * max(noise, _LEAST_DEVIATION * abs(level))
