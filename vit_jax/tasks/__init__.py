"""Tasks: the losses and predictions of a batch."""
