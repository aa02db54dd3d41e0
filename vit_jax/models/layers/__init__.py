"""Layers shared by all architectures."""
