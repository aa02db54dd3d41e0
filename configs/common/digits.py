"""Bases of the configs that train on real scanned digits: 8 x 8 pixels, 10 classes."""

from vit_jax.config import default_config


def base(model: str, **fields):
    """Return the settings of all: digits are rotated, shifted and scaled as much as people do."""
    config = default_config()
    config.dataset = "digits"
    config.model.update(name=model, **fields)
    config.augment.update(rotate=10.0, shift=0.08, scale=0.1)
    config.objective.label_smoothing = 0.1
    config.optimizer.update(learning_rate=2e-3, weight_decay=0.05)
    config.batch_size = 64
    return config


def unlabelled(task: str, model: str, **fields):
    """Return the settings of a task that learns from unchanged digits without their labels."""
    config = base(model, **fields)
    config.task = task
    config.data.labels = False
    config.augment.update(rotate=0.0, shift=0.0, scale=0.0)
    config.objective.label_smoothing = 0.0
    return config


def family(model: str, duration: str, **fields):
    """Return the settings of a small model of any architecture, evaluated once, at the end."""
    config = base(model, **fields)
    config.schedule.warmup = "3 epochs, at most 20%"
    config.duration = duration
    config.log.every = "5 epochs, at most 1000 steps"
    config.evaluate.every = "100%"
    config.checkpoint.every = "100%"
    return config


def convolutional(model: str, duration: str, **fields):
    """Return the settings of a small convolutional network, which learns at twice the rate."""
    config = family(model, duration, num_classes=10, image_size=16, in_channels=1, **fields)
    config.optimizer.learning_rate = 4e-3
    config.schedule.warmup = "2 epochs, at most 20%"
    config.log.every = "3 epochs, at most 1000 steps"
    return config
