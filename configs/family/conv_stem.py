"""A ViT with a stem of convolutions on the digits, 8 x 8 pixels shown at 16.

    python train.py --config=configs/family/conv_stem.py --workdir=runs/conv_stem

Reached by us: 99.17 %, with seed 0.
Cost: 109,178 parameters, 1.8 MMACs a picture; half a minute on two cores.
"""

from vit_jax.config import default_config


def get_config():
    config = default_config()
    config.dataset = "digits"

    config.model.name = "ConvStemViT"
    config.model.image_size = 16
    config.model.in_channels = 1
    config.model.patch_size = 4
    config.model.stem_channels = (16, 32)
    config.model.width = 64
    config.model.depth = 3
    config.model.heads = 4
    config.model.mlp_width = 128
    config.model.pool = "mean"

    config.augment.rotate = 10.0
    config.augment.shift = 0.08
    config.augment.scale = 0.1

    config.objective.label_smoothing = 0.1
    config.optimizer.learning_rate = 2e-3
    config.optimizer.weight_decay = 0.05
    config.schedule.warmup = "3 epochs, at most 20%"
    config.batch_size = 64
    config.duration = "25 epochs"

    config.log.every = "5 epochs, at most 1000 steps"
    config.evaluate.every = "100%"
    config.checkpoint.every = "100%"
    return config
