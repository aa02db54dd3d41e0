"""CIFAR-10 with a small wide ViT: 6 blocks of width 512 on patches of 8 pixels, for ten epochs.

    python train.py --config=configs/cifar10.py --workdir=runs/cifar10

CIFAR-10 (170 MB) is prepared once, by TensorFlow Datasets with TensorFlow; where it is not, the run
says with which command.

Known to reach: no figure is published for this model. A ViT of width 512 and depth 6, trained from
scratch for 200 epochs, is reported at 80 % with patches of 4 pixels and at 30 % with patches of 8
(the README of kentaroy47/vision-transformers-cifar10): ten epochs show that it learns, not what
CIFAR-10 allows.
Reached by us: not run, since the data could not be downloaded where this was written; two updates
on mocked data are part of the tests.
Cost: 19,028,490 parameters, 0.32 GMACs a picture; 500,000 pictures, 1 PFLOP in all.
"""

from vit_jax.config import default_config


def get_config():
    config = default_config()
    config.dataset = "tfds:cifar10"
    config.model.name = "CIFAR-ViT-512/8"

    config.augment.flip = 0.5
    config.augment.pad_crop = 4

    config.optimizer.learning_rate = 1e-3
    config.optimizer.weight_decay = 0.05
    config.schedule.warmup = "5%"
    config.batch_size = 128
    config.duration = "10 epochs"

    config.evaluate.every = "1 epoch"
    config.checkpoint.every = "1 epoch"
    config.log.every = "50 steps"
    return config
