"""Real scanned digits with a small EfficientNet: three stages, the first two at 8 x 8.

    python train.py --config=configs/family/efficientnet.py --workdir=runs/efficientnet

Reached by us: 99.72 %, with seed 0.
Cost: 55,002 parameters, 1.3 MMACs a picture; two minutes on two cores.
"""

from vit_jax.config import default_config


def get_config():
    config = default_config()
    config.dataset = "digits"
    config.model.name = "EfficientNet"
    config.model.num_classes = 10
    config.model.image_size = 16
    config.model.in_channels = 1
    config.model.depths = (1, 2, 2)
    config.model.widths = (16, 24, 48)
    config.model.kernels = (3, 3, 3)
    config.model.strides = (1, 1, 2)
    config.model.expansions = (1, 4, 4)
    config.model.stem_width = 16
    config.model.stem_stride = 2
    config.model.head_width = 128

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
