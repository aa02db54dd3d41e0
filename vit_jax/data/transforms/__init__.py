"""Augmentation of training images."""
