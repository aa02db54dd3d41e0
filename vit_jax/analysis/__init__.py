"""Looking inside: plots of runs."""
