"""Training: the trainer, the loop, optimizers and checkpoints. Start with `trainer.py`."""

from vit_jax.training.trainer import TrainResult, fit

__all__ = ["TrainResult", "fit"]
