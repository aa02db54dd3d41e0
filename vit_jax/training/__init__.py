"""How parameters are learned. Read `fitting.py`, then `loop.py`."""

from vit_jax.training.fitting import Outcome, fit

__all__ = ["Outcome", "fit"]
