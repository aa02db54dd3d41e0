"""Base of the configs that pre-train masked autoencoders on ImageNet-1k."""

from vit_jax.configs.common import imagenet


def pretrain(model: str):
    """Return the settings of He et al. (2022), table 8, and of their repository's PRETRAIN.md.

    Different from the paper: one percent of the training images is held out for the loss of
    validation, and bfloat16 takes the place of float16.
    """
    config = imagenet.unlabelled(
        "masked_autoencoding", model, positions="sincos2d", init_scheme="mae", pool="cls"
    )
    config.augment.update(random_resized_crop=0.2, flip=0.5)
    config.optimizer.update(learning_rate=2.4e-3, weight_decay=0.05, b2=0.95, clip=0.0)
    config.schedule.warmup = "40 epochs, at most 20%"
    config.batch_size = 4096  # the rate is 1.5e-4 for 256 images
    config.duration = "800 epochs"
    config.evaluate.every = "20 epochs"
    return config
