"""Weights of models of segmentation."""

FORMATS = ()
