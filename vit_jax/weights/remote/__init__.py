"""Weights from the web: names of repositories and addresses, and downloads that resume."""
