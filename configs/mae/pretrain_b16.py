"""Pre-training of ViT-B/16 on ImageNet-1k without labels, as a masked autoencoder.

    python train.py --config=configs/mae/pretrain_b16.py --workdir=runs/mae_b16

He et al. (2022), "Masked Autoencoders Are Scalable Vision Learners", arXiv:2111.06377, table 8.

Known to reach: after fine-tuning 83.664 % of ImageNet (configs/mae/finetune.py), by the authors'
weights of 1,600 epochs. Differences: configs/common/mae.py.
Reached by us: not run.
Cost: 85,647,360 parameters of the encoder and 26,008,320 of the decoder, 9.8 GMACs an image,
0.56 of those of supervised training.
"""

from vit_jax.configs.common import mae


def get_config():
    return mae.pretrain("ViT-B/16")
