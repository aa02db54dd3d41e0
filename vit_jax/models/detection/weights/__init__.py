"""Weights of detectors of other libraries."""

FORMATS = ()
