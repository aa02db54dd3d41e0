"""Attention: the function on queries, keys and values, its implementations, and its modules."""
