"""The small modules that every architecture is built from."""
