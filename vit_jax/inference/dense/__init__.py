"""Predictors of models that answer for every pixel, and the files that they write."""
