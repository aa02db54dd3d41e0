"""Tensor names of ViTs in the files of timm, Hugging Face, Google and torchvision."""
