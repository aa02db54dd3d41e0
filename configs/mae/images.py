"""Masked autoencoding of your own images, with or without labels, and then what to do with it.

    python train.py --config=configs/mae/images.py --config.dataset=folder:PATH --workdir=runs/mae
    python train.py --config=configs/finetune.py:mae --config.init_from=runs/mae \
        --config.dataset=folder:LABELLED --workdir=runs/mine

PATH may be a flat folder of images, or one with subfolders, which are not looked at. A ViT of 6
blocks of width 192 sees a quarter of the 144 patches of 8 pixels of an image of 96 pixels;
`--config.model.name=ViT-S/16 --config.model.image_size=224` is for a GPU and larger data. The
duration depends on the number of images: 400 epochs and at least 1,000 steps.

Known to reach: nothing is known of your images.
Reached by us: not run as a whole; two updates on a folder of images are part of the tests.
Cost: 2,706,816 parameters of the encoder; the first step shows the time on your machine.
"""

from vit_jax.configs.common import own_images


def get_config():
    config = own_images.base(
        "masked_autoencoding", positions="sincos2d", init_scheme="mae", pool="cls"
    )
    config.objective.update(decoder_width=128, decoder_depth=2, decoder_heads=4)
    config.augment.update(random_resized_crop=0.2, flip=0.5)
    config.optimizer.update(learning_rate=1e-3, weight_decay=0.05, b2=0.95, clip=0.0)
    config.schedule.warmup = "5%"
    config.duration = "400 epochs, at least 1_000 steps, at most 200_000 steps"
    return config
