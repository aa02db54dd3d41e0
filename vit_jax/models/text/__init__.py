"""Text towers: transformers from the ids of a text's tokens to one vector."""

from vit_jax.models.text.module import TextFeatures, TextTower, text_tower

__all__ = ["TextFeatures", "TextTower", "text_tower"]
