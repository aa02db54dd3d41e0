"""Figures of learned weights: positions, filters, features, nearest neighbours."""
