"""Learned parameters as figures: positions, filters, features, nearest neighbours."""
