"""Weights of all modules of a task, from and to files of other libraries."""
