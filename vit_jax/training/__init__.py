"""How parameters are learned. `loop.fit` is the whole of it."""

from vit_jax.training.loop import Outcome, fit

__all__ = ["Outcome", "fit"]
