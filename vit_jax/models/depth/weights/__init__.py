"""Weights of DPT and Depth Anything: names of transformers' two classes, and of the authors.

- transformers' `dpt`, also on a ResNet, and `depth_anything` are read and written; the authors'
  files of DPT and of Depth Anything V2 are read. The backbone has the names of transformers' ViT
  and DINOv2, or of timm and DINOv2's own files, behind a prefix.
- transformers and DPT's authors have the epsilons of their ViTs, 1e-12 and 1e-6, and take tables of
  positions to other grids bilinearly; Depth Anything takes them bicubically, as DINOv2 does.
- Without a configuration the blocks are those of the published models of that depth.

Sources: transformers 5.24, `DPTForDepthEstimation` and `DepthAnythingForDepthEstimation`, by
running them; isl-org/DPT, `dpt/models.py` and `dpt/vit.py` (Ranftl et al. 2021);
DepthAnything/Depth-Anything-V2, `depth_anything_v2/dpt.py` (Yang et al. 2024).
"""

from vit_jax.models.depth.weights import authors, hybrid, transformers

FORMATS = (
    hybrid.FORMAT,
    transformers.DPT,
    transformers.DEPTH_ANYTHING,
    authors.DPT,
    authors.DEPTH_ANYTHING,
)
