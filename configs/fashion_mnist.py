"""Fashion-MNIST from scratch with a small ViT: 4 blocks of width 128 on patches of 7 pixels.

    python train.py --config=configs/fashion_mnist.py --workdir=runs/fashion_mnist

The data, 31 MB, are fetched when they are first opened (or by `make data-fashion-mnist`).

Known to reach: 92.3 % after 200 epochs, and 93.0 to 93.5 %, are claimed in public for small ViTs.
Reached by us: 91.59 % in 45 epochs; docs/results/fashion_mnist.md has the log and the tuning.
Cost: 539,914 parameters, 8.6 MMACs a picture; about an hour on two CPU cores.
"""

from vit_jax.config import default_config


def get_config():
    config = default_config()
    config.dataset = "tfds:fashion_mnist"
    # Of the training pictures.
    config.data.mean = (0.286,)
    config.data.std = (0.353,)

    config.model.name = "ViT-Ti/16"
    config.model.image_size = 28
    config.model.in_channels = 1
    config.model.patch_size = 7
    config.model.width = 128
    config.model.depth = 4
    config.model.heads = 4
    config.model.mlp_width = 256
    config.model.pool = "mean"

    config.augment.flip = 0.5
    config.augment.pad_crop = 1

    config.objective.label_smoothing = 0.1
    config.optimizer.learning_rate = 1.5e-3
    config.optimizer.weight_decay = 0.05
    config.schedule.warmup = "5%"
    config.batch_size = 64
    config.duration = "45 epochs"

    config.evaluate.every = "45 epochs"  # once, at the end: the test set chooses nothing
    config.checkpoint.every = "1 epoch"
    config.log.every = "1 epoch, at most 1000 steps"
    return config
