"""Masked autoencoding of real scanned digits: features from images without labels, on a CPU.

    python train.py --config=configs/mae/digits.py --workdir=runs/mae_digits
    python train.py --config=configs/digits.py --config.init_from=runs/mae_digits --workdir=runs/new

The model of configs/digits.py as the encoder, with a decoder of one block of width 32.

Known to reach: nothing is published for these images. Raw pixels reach 97.2 % with k-NN, so the
comparison is with the random encoder that training starts from.
Reached by us: 95.6, 95.8 and 95.8 % with a linear probe for the seeds 0, 1 and 2, where the random
encoder has 87.2, 86.7 and 89.7 %; 95.0, 95.6 and 95.6 % with k-NN, and 59.7, 57.2 and 60.0 %
(docs/self_supervised.md).
Cost: 135,104 parameters of the encoder and 15,408 of the decoder; about a minute on one core.
"""

from vit_jax.configs.common import digits


def get_config():
    config = digits.unlabelled(
        "masked_autoencoding", "Digits-ViT-64/4", positions="sincos2d", init_scheme="mae"
    )
    config.objective.update(decoder_width=32, decoder_depth=1, decoder_heads=4)
    config.optimizer.update(learning_rate=4e-3, weight_decay=0.05, b2=0.95, clip=0.0)
    config.duration = "80 epochs"
    config.log.every = "8 epochs, at most 1000 steps"
    config.evaluate.every = "40 epochs"
    config.checkpoint.every = "40 epochs"
    return config
