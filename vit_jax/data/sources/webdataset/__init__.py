"""Shards of a WebDataset: tar files whose images are read by their places, never unpacked."""
