"""Tensor names of ViTs in the files of timm, transformers, Google, torchvision and authors."""

from vit_jax.models.vit.weights import (
    aimv2,
    beit,
    dinov3,
    eva,
    google,
    hugging_face,
    image_text,
    perception_encoder,
    timm,
    torchvision,
    transformers,
    vit5,
)

# The first format that recognises a file reads it: those with more names come first.
FORMATS = (
    vit5.FORMAT,
    *aimv2.FORMATS,
    *image_text.FORMATS,
    *perception_encoder.FORMATS,
    eva.FORMAT,
    *dinov3.FORMATS,
    beit.FORMAT,
    timm.FORMAT,
    *transformers.FORMATS,
    hugging_face.FORMAT,
    torchvision.FORMAT,
    google.FORMAT,
)
