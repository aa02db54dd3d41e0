"""Real scanned digits, from nothing to a trained Vision Transformer in a few minutes on a CPU.

python train.py --config=configs/digits.py --workdir=runs/digits
"""

from vit_jax.config import default_config


def get_config():
    config = default_config()
    config.dataset = "digits"
    config.model.name = "Digits-ViT-96/2"
    config.augment.rotate = 10.0
    config.augment.shift = 0.08
    config.augment.scale = 0.1
    config.optimizer.learning_rate = 1e-3
    config.optimizer.weight_decay = 0.05
    config.objective.label_smoothing = 0.1
    config.batch_size = 64
    config.duration = "60 epochs"
    config.schedule.warmup = "5 epochs"
    return config
