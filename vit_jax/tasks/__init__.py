"""What is learned: the losses of a batch and the predictions of a model."""
