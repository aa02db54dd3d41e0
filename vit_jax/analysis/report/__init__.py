"""Report of a run: its figures and one HTML page."""
