"""Datasets made of others: with captions, in images of two, and mixed."""
