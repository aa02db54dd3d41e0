"""MLP-Mixer (Tolstikhin et al. 2021)."""

from vit_jax.models.mixer import variants  # noqa: F401  (registers the names)
from vit_jax.models.mixer.module import Mixer

__all__ = ["Mixer"]
