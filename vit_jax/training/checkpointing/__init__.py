"""Checkpoints, preemption, and exclusive use of a run folder."""
