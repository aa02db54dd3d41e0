"""Accuracy on changed images: corruptions, perturbations, attacks, shape against texture."""
