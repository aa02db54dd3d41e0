"""Evaluation: metrics computed from all predictions."""
