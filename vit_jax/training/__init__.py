"""How parameters are learned. Read `trainer.py`, then `loop.py`."""

from vit_jax.training.trainer import TrainResult, fit

__all__ = ["TrainResult", "fit"]
