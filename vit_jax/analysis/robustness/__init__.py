"""Robustness: accuracy under corruptions, perturbations and attacks; shape against texture."""
