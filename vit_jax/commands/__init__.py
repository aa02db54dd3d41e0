"""The commands of `python -m vit_jax`; `train.py` is the first of them.

Each imports what it needs itself, so that help and mistakes do not wait for JAX.
"""
