"""Commands that make a trained model smaller, export, measure and serve it."""
