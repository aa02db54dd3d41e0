"""Base of the configs that learn from a folder of the user's own images, without labels."""

from vit_jax.config import default_config


def base(task: str, **model):
    """Return a small ViT for images of 96 pixels, and the intervals of its log.

    Args:
        task: the name of the task. model: further fields of the model.
    """
    config = default_config()
    config.task = task
    config.dataset = "folder:images"
    config.data.labels = False
    config.model.update(name="ViT-Ti/16", image_size=96, patch_size=8, depth=6, **model)
    config.batch_size = 128
    config.log.every = "10 steps"
    return config
