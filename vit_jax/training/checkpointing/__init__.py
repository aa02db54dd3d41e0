"""Checkpoints, preemption, and the claim on a run folder."""
