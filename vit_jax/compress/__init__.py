"""Smaller and faster models from trained ones: quantized, pruned, averaged, searched."""
