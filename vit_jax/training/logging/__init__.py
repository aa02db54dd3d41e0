"""Logging of a run: metrics, TensorBoard, Weights & Biases, timing, hardware and profiles."""
