"""Commands of `python -m vit_jax` and of `train.py`.

Each imports its dependencies itself, so that help and error messages do not wait for JAX.
"""
