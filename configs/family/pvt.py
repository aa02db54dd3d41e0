"""Real scanned digits with a small PVT: three stages, keys and values from reduced maps.

    python train.py --config=configs/family/pvt.py --workdir=runs/pvt

Reached by us: 99.72 %, with seed 0.
Cost: 275,370 parameters, 2.9 MMACs an image; a minute on two cores.
"""

from vit_jax.configs.common import digits


def get_config():
    config = digits.family("PVT", "25 epochs", num_classes=10, image_size=16, in_channels=1)
    # Maps of 8 x 8, 4 x 4 and 2 x 2 tokens; keys and values of 2 x 2 in each.
    config.model.update(patch_sizes=(2, 2, 2), widths=(32, 64, 96), depths=(1, 2, 1))
    config.model.update(heads=(1, 2, 3), mlp_ratios=(4, 4, 2), reductions=(4, 2, 1))
    return config
