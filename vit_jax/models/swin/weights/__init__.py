"""Weights of Swin: names of timm, of the authors' repository, and of Hugging Face.

Notable:
- timm 1.0 has the merging of patches at the beginning of a stage, as it is here; the authors and
  transformers at the end of the stage before. `normalize_names` makes one of them.
- The number of heads stands in the tables of relative positions, and so does the window: a table of
  a square window is a square of odd sides. Which image size the tables are for stands nowhere in
  most files; by default it is the one whose last map is one window: 224 pixels for
  window 7, 384 for 12.
- All of them pad maps that windows do not fill and let tokens attend to that padding; timm pads
  after the roll besides. Here padding is masked: numbers are theirs where nothing is padded.

Source of the names and facts: timm 1.0, `SwinTransformer`; microsoft/Swin-Transformer,
`models/swin_transformer.py` and `data/build.py`; transformers 5.24, `SwinModel`; by running them.
"""

from vit_jax.models.swin.weights import hugging_face, timm

FORMATS = (timm.FORMAT, hugging_face.FORMAT)
