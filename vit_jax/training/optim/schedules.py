"""Learning rate schedules: a linear warm-up, then one of four decays, all from optax.

| name | after the warm-up | source |
|---|---|---|
| cosine | half a cosine down to the end | Loshchilov & Hutter 2017, without restarts |
| linear | a straight line down to the end | |
| rsqrt | `peak / sqrt(1 + t / timescale)`, then the cooldown | Zhai et al. 2022, section 3.5 |
| constant | the peak, then the cooldown | |

`t` counts updates since the warm-up. Before the cooldown, rsqrt and constant do not depend on the
length of the run, so one run can be cooled down at several lengths.
"""

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from vit_jax.config.durations import Clock, parse_duration
from vit_jax.config.schema import KEYS
from vit_jax.errors import UserError
from vit_jax.training.setup.checks import resolve_steps


def make_schedule(config: ConfigDict, clock: Clock) -> optax.Schedule:
    """Return the learning rate by the number of completed updates.

    It rises linearly from 0 to `optimizer.learning_rate` over `schedule.warmup`, and is
    `schedule.end` times that after the last update.

    Raises:
        UserError: warm-up and cooldown do not fit into the run, or a key is set that this schedule
            does not read.
    """
    peak, settings, total = config.optimizer.learning_rate, config.schedule, clock.total_steps
    warmup = resolve_steps(config, "schedule.warmup", clock)
    if _is_share(settings.warmup):
        warmup = min(warmup, total - 1)  # a run of one step has no warm-up
    cooldown = resolve_steps(config, "schedule.cooldown", clock)
    timescale = resolve_steps(config, "schedule.timescale", clock)
    _check(config, warmup, cooldown, total)
    end = peak * settings.end

    if settings.name == "cosine":
        return optax.warmup_cosine_decay_schedule(
            init_value=peak if warmup == 0 else 0.0,
            peak_value=peak,
            warmup_steps=warmup,
            decay_steps=total,
            end_value=end,
        )
    rise = optax.linear_schedule(0.0, peak, warmup)
    if settings.name == "linear":
        return optax.join_schedules(
            [rise, optax.linear_schedule(peak, end, total - warmup)], [warmup]
        )
    way = optax.constant_schedule(peak)
    if settings.name == "rsqrt":
        way = reciprocal_sqrt_schedule(peak, timescale)
    if not cooldown:
        return optax.join_schedules([rise, way], [warmup])
    before = float(way(total - cooldown - warmup))
    if end > before:
        raise UserError(
            f"schedule.end = {settings.end} is above the learning rate at the start of the "
            f"cooldown, {before / peak:.3g} of the peak; use a smaller --config.schedule.end"
        )
    fall = optax.linear_schedule(before, end, cooldown)
    return optax.join_schedules([rise, way, fall], [warmup, total - cooldown])


def make_decay_schedule(config: ConfigDict, clock: Clock) -> float | optax.Schedule:
    """Return the weight decay, or, if it changes, the one by the number of completed updates.

    From `optimizer.weight_decay` half a cosine leads to `optimizer.weight_decay_end`, as in Caron
    et al. 2021, "Emerging Properties in Self-Supervised Vision Transformers", section 3.2.
    """
    start, end = config.optimizer.weight_decay, config.optimizer.weight_decay_end
    if end is None or end == start:
        return start

    def decay(count: Array | int) -> Float[Array, ""]:
        # optax's half cosine is relative to its start, which may be 0 here.
        share = (1 + jnp.cos(jnp.pi * jnp.minimum(count / clock.total_steps, 1))) / 2
        return end + (start - end) * share

    return decay


def reciprocal_sqrt_schedule(peak: float, timescale: int) -> optax.Schedule:
    """Return `peak / sqrt(1 + count / timescale)` (Zhai et al. 2022, section 3.5).

    timescale: updates after which the rate is the peak over the square root of 2.
    """
    # optax has no such schedule.
    return lambda count: peak / jnp.sqrt(1 + count / timescale)


def _is_share(text: str) -> bool:
    """Return whether a duration is a fraction of the run, below the whole."""
    duration = parse_duration(text)
    share = duration if duration.unit == "percent" else duration.most
    return share is not None and share.unit == "percent" and share.amount < 100


def _check(config: ConfigDict, warmup: int, cooldown: int, total: int) -> None:
    """Raise UserError if the parts do not fit into the run, or a key is set but not read."""
    settings = config.schedule
    run = f"the whole run (duration = {config.duration!r}) is {total} steps"
    if warmup >= total:
        raise UserError(
            f"schedule.warmup = {settings.warmup!r} is {warmup} steps, but {run}; the warm-up must "
            "be shorter: use --config.schedule.warmup=0 or a fraction of the run, such as 5%"
        )
    cools = settings.name in ("rsqrt", "constant")
    if cooldown and not cools:
        raise UserError(
            f"schedule.cooldown = {settings.cooldown!r}, but the schedule {settings.name!r} decays "
            "to its end without a cooldown; omit it, or use --config.schedule.name=constant "
            "or rsqrt"
        )
    if settings.timescale != KEYS["schedule.timescale"].default and settings.name != "rsqrt":
        raise UserError(
            f"schedule.timescale = {settings.timescale!r} belongs to the schedule 'rsqrt', but "
            f"schedule.name = {settings.name!r}; omit it, or use "
            "--config.schedule.name=rsqrt"
        )
    if settings.end and cools and not cooldown:
        raise UserError(
            f"schedule.end = {settings.end} is the end of the cooldown of the schedule "
            f"{settings.name!r}, but it has no cooldown; omit it, or use "
            "--config.schedule.cooldown=20%"
        )
    if warmup + cooldown > total:
        raise UserError(
            f"schedule.warmup = {settings.warmup!r} and schedule.cooldown = "
            f"{settings.cooldown!r} are {warmup} and {cooldown} steps, but {run}; make one of them "
            "shorter"
        )
