"""Weights of segmentation: SegFormer, Segmenter and UPerNet.

- transformers' `SegformerForSemanticSegmentation` is read and written; the authors' files, which
  mmsegmentation wrote, are read. Both have MiT as backbone, under the names of PVT v2's weights.
- Epsilons differ between the two, see `pvt_v2.module`: transformers has 1e-5 in all norms.
- transformers' UPerNet is read and written, on Swin and on ConvNeXt.
- Segmenter's files hold the encoder with the classifier of ImageNet, which is left out.
- The 150 classes of ADE20K have no ground: pixels of no class are ignored.

Sources: transformers 5.24, by running it; NVlabs/SegFormer, `segformer_head.py` (Xie et al. 2021);
rstrudel/segmenter, `segm/model` and `segm/data/config/ade20k.py` (Strudel et al. 2021).
"""

from vit_jax.models.segmentation.weights import segformer, segmenter, upernet

FORMATS = (*upernet.FORMATS, segformer.FORMAT, segformer.ORIGINAL, segmenter.FORMAT)
