"""Datasets by name: folders, tables of files, TFDS, and the sources that come with the package."""
