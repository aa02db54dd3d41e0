"""Pre-training of ViT-H/14 on ImageNet-1k without labels, as a masked autoencoder.

    python train.py --config=configs/mae/pretrain_h14.py --workdir=runs/mae_h14

He et al. (2022), "Masked Autoencoders Are Scalable Vision Learners", arXiv:2111.06377, table 8.

Known to reach: after fine-tuning 86.928 % of ImageNet (configs/mae/finetune.py), by the authors'
weights of 1,600 epochs. Differences: configs/common/mae.py.
Reached by us: not run.
Cost: 630,435,840 parameters of the encoder and 26,178,124 of the decoder, 48.6 GMACs an image,
0.29 of those of supervised training.
"""

from vit_jax.configs.common import mae


def get_config():
    return mae.pretrain("ViT-H/14")
