"""Weights of DPT and Depth Anything."""

FORMATS = ()
