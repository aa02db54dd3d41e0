"""ImageNet-1k from scratch with ViT-S/16, after DeiT III.

    python train.py --config=configs/imagenet_deit3_s16.py --workdir=runs/imagenet_deit3_s16

Touvron et al. (2022), "DeiT III: Revenge of the ViT", arXiv:2204.07118: LAMB, binary cross-entropy
for each class, 3-Augment, LayerScale, stochastic depth and 800 epochs.

Known to reach: 81.4 %. Different here, besides configs/common/imagenet.py: the targets of a mixed
image are its shares, where the authors' are 1 for both classes.
Reached by us: not run; two updates on mocked data are part of the tests.
Cost: 22,059,496 parameters, 4.6 GMACs an image; 1,015 million images, 28 EFLOP in all.
"""

from vit_jax.configs.common import imagenet


def get_config():
    config = imagenet.touvron("ViT-S/16", init_scheme="trunc02", pos_on_cls=False, drop_path=0.05)
    config.model.layer_scale = 1e-4
    config.augment.preset = "deit3"
    config.objective.loss = "sigmoid"
    config.optimizer.update(name="lamb", learning_rate=4e-3)
    config.optimizer.clip = 1.0  # inside the LAMB that the authors used
    config.schedule.end = 0.0025  # 1e-5
    config.batch_size = 2048
    config.duration = "800 epochs"
    config.evaluate.every = "10 epochs"
    return config
