"""ImageNet-1k from scratch with ViT-S/16, after "How to train your ViT?" (AugReg).

    python train.py --config=configs/imagenet_augreg_s16.py --workdir=runs/imagenet_augreg_s16

Steiner et al. (2021), arXiv:2106.10270: the 2020 paper's ViT with a class token, learned positions
and a hidden layer before the head; augmentation "medium2" is RandAugment and MixUp with alpha 0.5.
`configs/imagenet_s16.py` is the same authors' simpler and better config of a year later.

Known to reach: 76.1 % in 300 epochs and 74.8 in 150 with the weaker RandAugment and MixUp of Beyer
et al. (2022), "original + RandAug + MixUp". Differences: configs/common/imagenet.py.
Reached by us: not run; two updates on mocked data are part of the tests.
Cost: 22,198,504 parameters, 4.6 GMACs an image; 381 million images, 10.5 EFLOP in all.
"""

from vit_jax.configs.common import imagenet


def get_config():
    config = imagenet.augreg("ViT-S/16", mixup=0.5, representation_size=384)
    config.optimizer.moment_dtype = "bfloat16"
    config.batch_size = 4096
    config.duration = "300 epochs"
    return config
