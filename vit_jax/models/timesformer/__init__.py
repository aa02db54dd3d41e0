"""TimeSformer (Bertasius et al. 2021), a transformer of clips."""

from vit_jax.models.timesformer import variants  # noqa: F401  (registers the names)
from vit_jax.models.timesformer.module import TimeSformer

__all__ = ["TimeSformer"]
