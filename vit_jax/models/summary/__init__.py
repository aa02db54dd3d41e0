"""What a model costs: parameters, MACs, memory, and the accuracies that authors report."""
