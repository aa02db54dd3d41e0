"""ImageNet-1k with a plain ViT-S/16, after "Better plain ViT baselines for ImageNet-1k".

    python train.py --config=configs/imagenet_s16.py --workdir=runs/imagenet_s16

Beyer, Zhai and Kolesnikov (2022), arXiv:2205.01580: mean pooling, fixed sine-cosine positions, a
head with a hidden layer, RandAugment(2, 10) and MixUp with alpha 0.2 make a plain ViT a strong one.

Known to reach: 76.5 % in 90 epochs (6 to 7 hours on eight TPU v3 cores), 78.5 in 150, 80.0 in 300;
73.6 % in 90 without RandAugment and MixUp. Differences: configs/common/imagenet.py.
Reached by us: not run; two updates on mocked data are part of the tests.
Cost: 22,122,472 parameters, 4.6 GMACs an image; 115 million images, 3.2 EFLOP in all.
"""

from vit_jax.configs.common import imagenet


def get_config():
    config = imagenet.augreg("ViT-S/16", mixup=0.2, representation_size=384)
    config.model.update(pool="mean", positions="sincos2d_big_vision")
    config.batch_size = 1024
    config.duration = "90 epochs"
    return config
