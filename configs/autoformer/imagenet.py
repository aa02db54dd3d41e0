"""The supernets of AutoFormer on ImageNet-1k: Chen et al. (2021), and their repository.

    python train.py --config=configs/autoformer/imagenet.py:tiny --workdir=runs/supernet
    python -m vit_jax autoformer-search runs/supernet runs/search --max-parameters=6000000

tiny, small, base   AutoFormer-T, S and B: supernets of 1.1e9, 7.7e13 and 1.0e13 subnets.

The settings are those of DeiT for 500 epochs. Different from the paper: one percent of the training
images is held out, by which the search judges subnets, and every step computes the whole supernet,
masked, where the authors compute the subnet alone.

Known to reach: 75.3, 81.7 and 82.4 % with the subnets that the authors found, of 5.8, 22.9 and 53.7
M parameters, without training them further (their README).
Reached by us: not trained.
Cost: 11.7, 34.8 and 80.2 M parameters, 2.7, 7.7 and 17.2 GMACs an image in every step.
"""

from vit_jax.configs.common import imagenet
from vit_jax.configs.common.presets import choose
from vit_jax.models.autoformer.variants import SUPERNETS
from vit_jax.models.supernet.space import SPACES

PRESETS = {"tiny": "T", "small": "S", "base": "B"}


def get_config(preset="tiny"):
    size = choose(PRESETS, preset)
    width, depth, heads = SUPERNETS[size]
    config = imagenet.deit("AutoFormer", width=width, depth=depth, heads=heads)
    config.task = "supernet"
    space = SPACES[f"AutoFormer-{size}"]
    names = ("depths", "widths", "heads", "mlp_ratios")
    config.objective.update({name: getattr(space, name) for name in names})
    config.schedule.warmup = "20 epochs, at most 20%"
    config.duration = "500 epochs"
    return config
