"""A ViT against a convolutional network of the same work, on much and on little data.

    python train.py --config=configs/data_efficiency.py:vit --workdir=runs/efficiency/vit
    python train.py --config=configs/data_efficiency.py:cnn --config.data.train=train[:5%] \
        --workdir=runs/efficiency/cnn_5

Both see the digits at 16 pixels, with the same augmentation, for the same 1,000 updates of 32
pictures whatever the number of different ones. `python -m benchmarks.data_efficiency` trains both
on 5, 20 and 100 % of the data with three seeds each, and draws the curves.
Reached by us: docs/results/data_efficiency.md.
Cost: ViT 136,778 parameters, CNN 59,010 parameters, 2.2 MMACs a picture each; a minute on two
cores.
"""

from vit_jax.config import default_config

MODELS = {
    "vit": {"name": "Digits-ViT-64/4"},
    "cnn": {
        "name": "ResNet",
        "image_size": 16,
        "in_channels": 1,
        "block": "basic",
        "depths": (1, 1, 1),
        "widths": (14, 28, 56),
        "stem_width": 8,
        "small_stem": True,
    },
}


def get_config(kind: str = "vit"):
    config = default_config()
    config.dataset = "digits"
    config.model.update(MODELS[kind])

    config.augment.rotate = 10.0
    config.augment.shift = 0.08
    config.augment.scale = 0.1

    config.objective.label_smoothing = 0.1
    config.optimizer.learning_rate = 2e-3
    config.optimizer.weight_decay = 0.05
    config.schedule.warmup = "10%"
    config.batch_size = 32
    config.duration = "1000 steps"

    config.log.every = "10%"
    config.evaluate.every = "100%"
    config.checkpoint.every = "100%"
    return config
