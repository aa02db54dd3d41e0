"""From a configuration to an experiment: data, model, objective, optimizer, and their checks."""
