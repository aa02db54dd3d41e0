"""Attention maps: weights, rollout, relevance, distance, entropy, and figures of them."""
