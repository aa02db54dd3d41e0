"""How parameters are learned. Read `trainer.py`, then `loop.py`."""

from vit_jax.training.trainer import Outcome, fit

__all__ = ["Outcome", "fit"]
