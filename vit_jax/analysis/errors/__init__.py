"""Errors of a classifier: the most confident ones, calibration, rare classes, saliency."""
