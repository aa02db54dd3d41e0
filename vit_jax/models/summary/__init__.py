"""Summary of a model: parameters, MACs, memory, and the accuracies that authors report."""
