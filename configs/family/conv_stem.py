"""A ViT with a stem of convolutions on the digits, 8 x 8 pixels resized to 16.

    python train.py --config=configs/family/conv_stem.py --workdir=runs/conv_stem

Reached by us: 99.17 %, with seed 0.
Cost: 109,178 parameters, 1.8 MMACs an image; half a minute on two cores.
"""

from vit_jax.configs.common import digits


def get_config():
    config = digits.family("ConvStemViT", "25 epochs", image_size=16, in_channels=1, patch_size=4)
    config.model.update(stem_channels=(16, 32), width=64, depth=3, heads=4, mlp_width=128)
    config.model.pool = "mean"
    return config
