"""Diagnostics while a model trains: attention, rank of features, gradients, updates."""
