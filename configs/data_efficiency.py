"""A ViT against a convolutional network of the same cost, on much and on little data.

    python train.py --config=configs/data_efficiency.py:vit --workdir=runs/efficiency/vit
    python train.py --config=configs/data_efficiency.py:cnn --config.data.train=train[:5%] \
        --workdir=runs/efficiency/cnn_5

Both see the digits at 16 pixels, with the same augmentation, for the same 1,000 updates of 32
images, whatever the size of the training set. `python -m benchmarks.data_efficiency` trains both
on 5, 20 and 100 % of the data with three seeds each, and draws the curves.
Reached by us: docs/results/data_efficiency.md.
Cost: ViT 136,778 parameters, CNN 59,010 parameters, 2.2 MMACs an image each; a minute on two
cores.
"""

from vit_jax.configs.common import digits
from vit_jax.configs.common.presets import choose

CNN = {"image_size": 16, "in_channels": 1, "block": "basic", "depths": (1, 1, 1)}
CNN |= {"widths": (14, 28, 56), "stem_width": 8, "small_stem": True}
MODELS = {"vit": ("Digits-ViT-64/4", {}), "cnn": ("ResNet", CNN)}


def get_config(kind: str = "vit"):
    model, fields = choose(MODELS, kind)
    config = digits.family(model, "1000 steps", **fields)
    config.schedule.warmup = "10%"
    config.batch_size = 32
    config.log.every = "10%"
    return config
