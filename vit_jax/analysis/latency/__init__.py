"""Latency of models: one next to the other, by batch size and by what computes them.

timing.py      rounds in which all take turns, percentiles, rates
contenders.py  a model by JAX, as an exported file, quantized, with fewer tokens
tables.py      the measurement of several models, and its rows
"""
