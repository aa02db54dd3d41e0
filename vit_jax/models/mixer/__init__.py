"""MLP-Mixer (Tolstikhin et al. 2021)."""

from vit_jax.models.mixer.module import Mixer

__all__ = ["Mixer"]
