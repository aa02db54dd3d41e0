"""Weights of other libraries: safe readers, tables of names and shapes, and writers."""
