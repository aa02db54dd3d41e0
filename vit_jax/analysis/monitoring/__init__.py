"""Diagnostics during training: attention, rank of features, gradients, updates."""
