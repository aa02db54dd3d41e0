"""Real scanned digits with a small MLP-Mixer: patches and two MLPs, no attention.

    python train.py --config=configs/family/mixer.py --workdir=runs/mixer

Reached by us: 98.89 %, with seed 0.
Cost: 72,314 parameters, 3.9 MMACs a picture; a minute on two cores.
"""

from vit_jax.config import default_config


def get_config():
    config = default_config()
    config.dataset = "digits"
    config.model.name = "Mixer"
    config.model.num_classes = 10
    config.model.image_size = 16
    config.model.in_channels = 1
    config.model.patch_size = 2
    config.model.width = 48
    config.model.depth = 4
    config.model.token_mlp_width = 64
    config.model.channel_mlp_width = 96

    # Turned, shifted and scaled about as much as people's hands do.
    config.augment.rotate = 10.0
    config.augment.shift = 0.08
    config.augment.scale = 0.1

    config.objective.label_smoothing = 0.1
    config.optimizer.learning_rate = 3e-3
    config.optimizer.weight_decay = 0.05
    config.schedule.warmup = "3 epochs, at most 20%"
    config.batch_size = 64
    config.duration = "25 epochs"

    config.log.every = "5 epochs, at most 1000 steps"
    config.evaluate.every = "100%"
    config.checkpoint.every = "100%"
    return config
