"""Weights of PVT v2 and MiT: names of timm, the authors, and transformers' two classes.

- timm and the authors have the same names of blocks; the authors count stages from 1. SegFormer's
  own files have the authors' names of PVT v2 too.
- transformers has `pvt_v2` and `segformer`. Of a SegFormer the encoder is read, with its classifier
  if it has one; the decoder is left out.
- The epsilons differ, see `module`. Each file gets those of its origin.
- Tensors have no heads, strides and image size. Without a configuration the strides are those of
  all published models, and heads are as wide as published ones, 32 in B0 and 64 in the others.

Sources: timm 1.0.31, `pvt_v2.py`, and transformers 5.24, `PvtV2ForImageClassification`,
`SegformerForImageClassification` and `SegformerForSemanticSegmentation`, by running them;
whai362/PVT, `pvt_v2.py` (Wang et al. 2022); NVlabs/SegFormer, `mix_transformer.py` (Xie et al.
2021).
"""

from vit_jax.models.pvt_v2.weights import hugging_face, timm

FORMATS = (timm.FORMAT, timm.ORIGINAL, hugging_face.SEGFORMER, hugging_face.PVT_V2)
