"""A supernet of small ViTs for the digits: 8 x 8 pixels, 10 classes; AutoFormer (2021).

    python train.py --config=configs/autoformer/digits.py --workdir=runs/supernet
    python -m vit_jax autoformer-search runs/supernet runs/search --max-parameters=68000

supernet    Each step trains one of 22,113 subnets: 2 to 4 blocks of width 32, 48 or 64, each with 2
            to 4 heads of 16 channels and an MLP of once to twice the width.
subnet      One ViT alone, by default the largest.

A fifth of the training digits is held out: the search looks at these alone.

Known to reach: nothing is published for a model this small.
Reached by us: docs/results/autoformer.md.
Cost: 136,778 parameters, 2.2 MMACs an image in every step, whatever the subnet.
"""

from vit_jax.configs.common import digits
from vit_jax.configs.common.presets import choose


def supernet(config):
    config.task = "supernet"
    config.objective.update(
        depths=(2, 3, 4), widths=(32, 48, 64), heads=(2, 3, 4), mlp_ratios=(1.0, 1.5, 2.0)
    )


def subnet(config):
    config.model.head_dim = 16


PRESETS = {"supernet": supernet, "subnet": subnet}


def get_config(preset="supernet"):
    sizes = {"width": 64, "depth": 4, "heads": 4, "mlp_width": 128}
    config = digits.family("Digits-ViT-64/4", "120 epochs", pool="mean", **sizes)
    config.data.update(train="train[:80%]", validation="train[80%:]")
    choose(PRESETS, preset)(config)
    return config
