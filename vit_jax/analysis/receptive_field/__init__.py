"""Receptive fields, by gradients and by arithmetic."""
