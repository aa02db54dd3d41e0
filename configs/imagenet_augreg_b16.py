"""ImageNet-1k from scratch with ViT-B/16, after "How to train your ViT?" (AugReg).

    python train.py --config=configs/imagenet_augreg_b16.py --workdir=runs/imagenet_augreg_b16

Steiner et al. (2021), arXiv:2106.10270: configs/imagenet_augreg_s16.py with a larger model.

Known to reach: about 79 % (the authors, in the issues of big_vision); 79.7 % by the config of the
same name in scenic. Differences: configs/common/imagenet.py.
Reached by us: not run; two updates on mocked data are part of the tests.
Cost: 87,158,248 parameters, 17.6 GMACs an image; 381 million images, 40 EFLOP in all.
"""

from vit_jax.configs import imagenet_augreg_s16


def get_config():
    config = imagenet_augreg_s16.get_config()
    config.model.update(name="ViT-B/16", representation_size=768)
    return config
