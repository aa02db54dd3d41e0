"""Checkpoint formats: none but run folders, since no other library has such models."""

FORMATS = ()
