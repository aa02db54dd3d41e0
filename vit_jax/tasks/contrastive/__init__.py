"""Contrastive learning: images and their captions as vectors of one space."""
