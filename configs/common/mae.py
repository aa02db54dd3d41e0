"""Base of the configs that pre-train masked autoencoders on ImageNet-1k."""

from vit_jax.configs.common import imagenet

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def pretrain(model: str):
    """Return the settings of He et al. (2022), table 8, and of their repository's PRETRAIN.md.

    Different from the paper: one percent of the training images is held out for the loss of
    validation, and bfloat16 takes the place of float16.
    """
    config = imagenet.base(model)
    config.task = "masked_autoencoding"
    config.data.labels = False
    config.model.update(positions="sincos2d", init_scheme="mae", pool="cls")
    config.data.update(crop=0.875, **IMAGENET)
    config.augment.update(random_resized_crop=0.2, flip=0.5)
    config.optimizer.update(learning_rate=2.4e-3, weight_decay=0.05, b2=0.95, clip=0.0)
    config.schedule.warmup = "40 epochs, at most 20%"
    config.batch_size = 4096  # the rate is 1.5e-4 for 256 images
    config.duration = "800 epochs"
    config.evaluate.every = "20 epochs"
    config.checkpoint.every = "1 epoch"
    config.log.every = "50 steps, at most 2%"
    return config
