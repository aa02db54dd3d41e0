"""Inspection of a dataset before training: a report and contact sheets."""
