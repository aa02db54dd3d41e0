"""Supernet: one ViT whose subnets share its weights (AutoFormer, Chen et al. 2021).

`space.py` has the sizes that subnets may have, `masking.py` computes a subnet by masks and slices
it out, `cost.py` counts its parameters and multiply-accumulates.
"""
