"""How a model is judged: metrics of all predictions of an evaluation."""
