"""Detection: objects as a set of predictions, each matched to at most one object."""
