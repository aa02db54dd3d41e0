"""Depth from one image: losses of depths and of inverse depths, and the task."""
