"""Effective and theoretical receptive fields."""
