"""Sweeps: one configuration trained with many settings, resumable, judged by validation images."""
