"""Smaller and faster models from trained ones: quantization, and averages of checkpoints."""
