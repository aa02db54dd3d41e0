"""Texts: cleaning, and tokenizers that turn them into the ids that a text tower takes."""

from vit_jax.data.text.clip import clip_tokenizer
from vit_jax.data.text.load import load_tokenizer
from vit_jax.data.text.sentencepiece import siglip_tokenizer
from vit_jax.data.text.tokenizer import Tokenizer
from vit_jax.data.text.trained import train_tokenizer

__all__ = ["Tokenizer", "clip_tokenizer", "load_tokenizer", "siglip_tokenizer", "train_tokenizer"]
