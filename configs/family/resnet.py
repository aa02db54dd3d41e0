"""Real scanned digits with a small ResNet: 3 x 3 stem without pooling, three stages of one block.

    python train.py --config=configs/family/resnet.py --workdir=runs/resnet

Reached by us: 100.00 %, with seed 0.
Cost: 77,754 parameters, 3.1 MMACs a picture; half a minute on two cores.
"""

from vit_jax.config import default_config


def get_config():
    config = default_config()
    config.dataset = "digits"
    config.model.name = "ResNet"
    config.model.num_classes = 10
    config.model.image_size = 16
    config.model.in_channels = 1
    config.model.block = "basic"
    config.model.depths = (1, 1, 1)
    config.model.widths = (16, 32, 64)
    config.model.stem_width = 16
    config.model.small_stem = True

    # Turned, shifted and scaled about as much as people's hands do.
    config.augment.rotate = 10.0
    config.augment.shift = 0.08
    config.augment.scale = 0.1

    config.objective.label_smoothing = 0.1
    config.optimizer.learning_rate = 4e-3
    config.optimizer.weight_decay = 0.05
    config.schedule.warmup = "2 epochs, at most 20%"
    config.batch_size = 64
    config.duration = "15 epochs"

    config.log.every = "3 epochs, at most 1000 steps"
    config.evaluate.every = "100%"
    config.checkpoint.every = "100%"
    return config
