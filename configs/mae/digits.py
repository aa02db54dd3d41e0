"""Masked autoencoding of real scanned digits: features from images without labels, on a CPU.

python train.py --config=configs/mae/digits.py --workdir=runs/mae_digits
"""

from vit_jax.configs.common import digits


def get_config():
    config = digits.base("Digits-ViT-64/4", positions="sincos2d", init_scheme="mae")
    config.task = "masked_autoencoding"
    config.objective.update(label_smoothing=0.0)
    config.objective.update(decoder_width=48, decoder_depth=2, decoder_heads=4)
    config.optimizer.update(learning_rate=2e-3, weight_decay=0.05, b2=0.95, clip=0.0)
    config.schedule.warmup = "5%"
    config.batch_size = 128
    config.duration = "2000 steps"
    config.log.every = "10%"
    config.evaluate.every = "50%"
    config.checkpoint.every = "50%"
    return config
