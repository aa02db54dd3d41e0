"""The report of a run: one HTML page and its figures."""
