"""A hybrid of ResNet and ViT on the digits, 8 x 8 pixels resized to 32.

    python train.py --config=configs/family/hybrid.py --workdir=runs/hybrid

Two stages of one unit each: a stride of 8, so 4 x 4 tokens.

Reached by us: 98.89 %, with seed 0.
Cost: 140,410 parameters, 2.8 MMACs an image; a minute on two cores.
"""

from vit_jax.configs.common import digits


def get_config():
    config = digits.family("HybridViT", "20 epochs", image_size=32, in_channels=1, patch_size=8)
    config.model.update(stem_units=(1, 1), stem_width=16, stem_groups=4)
    config.model.update(width=64, depth=3, heads=4, mlp_width=128, pool="mean")
    return config
