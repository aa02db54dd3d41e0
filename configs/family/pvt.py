"""Real scanned digits with a small PVT: three stages, keys and values from shrunken maps.

    python train.py --config=configs/family/pvt.py --workdir=runs/pvt

Reached by us: 99.72 %, with seed 0.
Cost: 275,370 parameters, 2.9 MMACs a picture; a minute on two cores.
"""

from vit_jax.config import default_config


def get_config():
    config = default_config()
    config.dataset = "digits"
    config.model.name = "PVT"
    config.model.num_classes = 10
    config.model.image_size = 16
    config.model.in_channels = 1
    # Maps of 8 x 8, 4 x 4 and 2 x 2 tokens; keys and values of 2 x 2 in each.
    config.model.patch_sizes = (2, 2, 2)
    config.model.widths = (32, 64, 96)
    config.model.depths = (1, 2, 1)
    config.model.heads = (1, 2, 3)
    config.model.mlp_ratios = (4, 4, 2)
    config.model.reductions = (4, 2, 1)

    # Turned, shifted and scaled about as much as people's hands do.
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
