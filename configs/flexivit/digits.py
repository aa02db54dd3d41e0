"""One ViT for patches of 4 to 12 pixels, on the digits of 8 x 8 pixels resized to 24.

    python train.py --config=configs/flexivit/digits.py --workdir=runs/flexivit
    python train.py --config=configs/flexivit/digits.py:vit --config.model.patch_size=8 \
        --workdir=runs/vit_8

flexible    FlexiViT (Beyer et al. 2023): each step draws one of the patch sizes 4, 6, 8 and 12,
            which are 36, 16, 9 and 4 patches; the model is evaluated at each of them.
vit         A ViT of one patch size and the same blocks.

Known to reach: nothing is published for a model this small.
Reached by us: docs/results/flexi.md.
Cost: 61,354 parameters, 1.0 MMACs an image in the mean of the patch sizes.
"""

from vit_jax.configs.common import digits
from vit_jax.configs.common.presets import choose


def flexible(config):
    config.model.update(name="FlexiViT", kernel_size=8, table_grid=4)
    config.objective.patch_sizes = (4, 6, 8, 12)


def vit(config):
    config.model.name = "ViT"


PRESETS = {"flexible": flexible, "vit": vit}


def get_config(preset="flexible"):
    sizes = {"width": 48, "depth": 3, "heads": 3, "mlp_width": 96, "patch_size": 4}
    config = digits.family(
        "ViT", "30 epochs", num_classes=10, image_size=24, in_channels=1, pool="mean", **sizes
    )
    choose(PRESETS, preset)(config)
    return config
