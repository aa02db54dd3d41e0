"""Weights of Swin and Swin V2: names of timm, the authors, torchvision, and Hugging Face.

- timm 1.0 merges patches at the beginning of a stage, as here; the others at the end of
  the previous stage. `normalize_names` converts their names.
- The tables of relative positions determine the number of heads and the window: the table of a
  square window has the square of an odd number of rows. Most files do not contain the image size;
  the default is the size whose last map is one window: 224 pixels for window 7, 384 for 12.
- All of them pad maps that windows do not fill and let tokens attend to that padding; timm also
  pads after the roll. Here padding is masked, so results are equal only without padding.

Of Swin V2 no library sees other biases than ours: coordinates are relative to the window of the
model, or to `pretrained_windows`. Files of the authors and of torchvision have those coordinates,
which show both windows; of other files the configuration names them.

Source of the names and facts: timm 1.0, `SwinTransformer` and `SwinTransformerV2`;
microsoft/Swin-Transformer, `models/swin_transformer.py` and `data/build.py`; transformers 5.24,
`SwinModel` and `Swinv2Model`; by running them.
"""

from vit_jax.models.swin.weights import hugging_face, timm, torchvision

FORMATS = (*timm.FORMATS, *torchvision.FORMATS, *hugging_face.FORMATS)
