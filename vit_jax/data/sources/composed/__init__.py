"""Datasets made of others: with captions, in pictures of two, and mixed."""
