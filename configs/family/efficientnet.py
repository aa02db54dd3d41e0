"""Real scanned digits with a small EfficientNet: three stages, the first two at 8 x 8.

    python train.py --config=configs/family/efficientnet.py --workdir=runs/efficientnet

Reached by us: 99.72 %, with seed 0.
Cost: 55,002 parameters, 1.3 MMACs an image; two minutes on two cores.
"""

from vit_jax.configs.common import digits


def get_config():
    config = digits.convolutional("EfficientNet", "20 epochs", depths=(1, 2, 2), strides=(1, 1, 2))
    config.model.update(widths=(16, 24, 48), kernels=(3, 3, 3), expansions=(1, 4, 4))
    config.model.update(stem_width=16, stem_stride=2, head_width=128)
    return config
