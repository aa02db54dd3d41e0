"""ViTs of transformers with tensors of their own names; `hugging_face` has the plain ones."""

from vit_jax.models.vit.weights.transformers import beit, dinov3

FORMATS = (beit.FORMAT, dinov3.FORMAT)
