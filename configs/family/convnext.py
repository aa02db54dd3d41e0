"""Real scanned digits with a small ConvNeXt: patches of 2 x 2, two stages of two blocks.

    python train.py --config=configs/family/convnext.py --workdir=runs/convnext

Reached by us: 99.44 %, with seed 0.
Cost: 97,578 parameters, 2.4 MMACs an image; a minute and a half on two cores.
"""

from vit_jax.configs.common import digits


def get_config():
    config = digits.convolutional("ConvNeXt", "20 epochs", depths=(2, 2), widths=(32, 64))
    config.model.update(patch_size=2, kernel_size=5)
    config.model.layer_scale = None  # so few updates would not raise it from 1e-6
    return config
