"""Ecosystems of weights files: configuration, preprocessing and quirks of each origin."""
