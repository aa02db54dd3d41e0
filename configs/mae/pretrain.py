"""Pre-training of a ViT on ImageNet-1k without labels, as a masked autoencoder, in three sizes.

    python train.py --config=configs/mae/pretrain.py:b16 --workdir=runs/mae_b16

He et al. (2022), "Masked Autoencoders Are Scalable Vision Learners", arXiv:2111.06377, table 8.

Known to reach: after fine-tuning (configs/mae/finetune.py) 83.664 % of ImageNet by `b16`, 85.952 %
by `l16` and 86.928 % by `h14`, by the authors' weights of 1,600 epochs. Differences:
configs/common/mae.py.
Reached by us: not run.
Cost of an image, with that of supervised training as 1:

    b16   85,647,360 parameters of the encoder, 26,008,320 of the decoder,  9.8 GMACs, 0.56
    l16  303,099,904 parameters of the encoder, 26,139,392 of the decoder, 20.8 GMACs, 0.34
    h14  630,435,840 parameters of the encoder, 26,178,124 of the decoder, 48.6 GMACs, 0.29
"""

from vit_jax.configs.common import mae
from vit_jax.configs.common.presets import choose

MODELS = {"b16": "ViT-B/16", "l16": "ViT-L/16", "h14": "ViT-H/14"}


def get_config(preset="b16"):
    return mae.pretrain(choose(MODELS, preset))
