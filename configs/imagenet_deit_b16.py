"""ImageNet-1k from scratch with ViT-B/16, after DeiT, without its distillation.

    python train.py --config=configs/imagenet_deit_b16.py --workdir=runs/imagenet_deit_b16

Touvron et al. (2021), "Training data-efficient image transformers", arXiv:2012.12877, table 9.

Known to reach: 81.8 % (DeiT-B). Differences: configs/common/imagenet.py.
Reached by us: not run; two updates on mocked data are part of the tests.
Cost: 86,567,656 parameters, 17.6 GMACs an image; 381 million images, 40 EFLOP in all.
"""

from vit_jax.configs.common import imagenet


def get_config():
    return imagenet.deit("ViT-B/16", init_scheme="trunc02")
