"""Records of a run: metrics, TensorBoard, Weights & Biases, timing, hardware, profiles."""
