"""Optimizers, learning rate schedules and groups of parameters."""
