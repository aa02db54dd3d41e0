"""FlexiViT (Beyer et al. 2023): one ViT for any patch size."""

from vit_jax.models.flexivit import variants  # noqa: F401  (registers the names)
