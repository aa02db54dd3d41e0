"""ImageNet-1k from scratch with ViT-S/16, after DeiT, without its distillation.

    python train.py --config=configs/imagenet_deit_s16.py --workdir=runs/imagenet_deit_s16

Touvron et al. (2021), "Training data-efficient image transformers", arXiv:2012.12877, table 9.

Known to reach: 79.9 % (DeiT-S). Differences: configs/common/imagenet.py.
Reached by us: not run; two updates on mocked data are part of the tests.
Cost: 22,050,664 parameters, 4.6 GMACs an image; 381 million images, 10.5 EFLOP in all.
"""

from vit_jax.configs.common import imagenet


def get_config():
    return imagenet.deit("ViT-S/16", init_scheme="trunc02")
