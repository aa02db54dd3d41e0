"""The learning rate over time and the optimizer, both from optax.

AdamW with decoupled weight decay on matrices and convolution kernels only (never on biases, norms,
tokens, position tables or scales), after clipping the gradient by its global norm.
"""

from typing import Any

import jax
import optax
from ml_collections import ConfigDict


def make_schedule(config: ConfigDict, warmup_steps: int, total_steps: int) -> optax.Schedule:
    """Learning rate by the number of updates already done.

    Rises linearly from 0 to the peak over `warmup_steps`, then falls along half a cosine to
    `schedule.end` times the peak after `total_steps` (Loshchilov & Hutter 2017, without restarts).
    """
    peak = config.optimizer.learning_rate
    return optax.warmup_cosine_decay_schedule(
        init_value=peak if warmup_steps == 0 else 0.0,
        peak_value=peak,
        warmup_steps=warmup_steps,
        decay_steps=total_steps,
        end_value=peak * config.schedule.end,
    )


def make_optimizer(config: ConfigDict, schedule: optax.Schedule) -> optax.GradientTransformation:
    """AdamW (Loshchilov & Hutter 2019) behind clipping by the global norm."""
    settings = config.optimizer
    adamw = optax.adamw(
        schedule,
        b1=settings.b1,
        b2=settings.b2,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        mask=decay_mask,
    )
    if not settings.clip:
        return adamw
    return optax.chain(optax.clip_by_global_norm(settings.clip), adamw)


def decay_mask(params: Any) -> Any:
    """True for each leaf that weight decay shrinks: the kernels of dense layers and convolutions.

    By name, not by rank: biases of the attention projections have several axes, and tokens and
    position tables look like matrices.
    """
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)
