"""Fewer tokens inside a ViT: merged, dropped, or kept by attention."""
