"""Weights of detectors: YOLOS and DETR of transformers, and DETR of its authors.

- transformers' files are read and written, the authors' are read. The backbone of a DETR has the
  names of timm's ResNet behind a prefix.
- YOLOS has one table of positions for all tokens, detection tokens at the end; here they are apart,
  and the tables behind the blocks have the detection tokens in front of the patches.
- The output "no object" of the classes is no class: the numbers of classes are one less.

Sources: transformers 5.24, `YolosForObjectDetection` and `DetrForObjectDetection`, by running them;
facebookresearch/detr, `models/detr.py` and `models/transformer.py` (Carion et al. 2020).
"""

from vit_jax.models.detection.weights import detr, yolos

FORMATS = (yolos.FORMAT, detr.FORMAT, detr.AUTHORS)
