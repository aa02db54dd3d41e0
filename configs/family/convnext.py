"""Real scanned digits with a small ConvNeXt: patches of 2 x 2, two stages of two blocks.

    python train.py --config=configs/family/convnext.py --workdir=runs/convnext

Reached by us: 99.44 %, with seed 0.
Cost: 97,578 parameters, 2.4 MMACs a picture; a minute and a half on two cores.
"""

from vit_jax.config import default_config


def get_config():
    config = default_config()
    config.dataset = "digits"
    config.model.name = "ConvNeXt"
    config.model.num_classes = 10
    config.model.image_size = 16
    config.model.in_channels = 1
    config.model.depths = (2, 2)
    config.model.widths = (32, 64)
    config.model.patch_size = 2
    config.model.kernel_size = 5
    config.model.layer_scale = None  # which so few updates would not bring up from 1e-6

    # Turned, shifted and scaled about as much as people's hands do.
    config.augment.rotate = 10.0
    config.augment.shift = 0.08
    config.augment.scale = 0.1

    config.objective.label_smoothing = 0.1
    config.optimizer.learning_rate = 4e-3
    config.optimizer.weight_decay = 0.05
    config.schedule.warmup = "2 epochs, at most 20%"
    config.batch_size = 64
    config.duration = "20 epochs"

    config.log.every = "3 epochs, at most 1000 steps"
    config.evaluate.every = "100%"
    config.checkpoint.every = "100%"
    return config
