"""Pre-training of ViT-L/16 on ImageNet-1k without labels, as a masked autoencoder.

    python train.py --config=configs/mae/pretrain_l16.py --workdir=runs/mae_l16

He et al. (2022), "Masked Autoencoders Are Scalable Vision Learners", arXiv:2111.06377, table 8.

Known to reach: after fine-tuning 85.952 % of ImageNet (configs/mae/finetune.py), by the authors'
weights of 1,600 epochs. Differences: configs/common/mae.py.
Reached by us: not run.
Cost: 303,099,904 parameters of the encoder and 26,139,392 of the decoder, 20.8 GMACs an image,
0.34 of those of supervised training.
"""

from vit_jax.configs.common import mae


def get_config():
    return mae.pretrain("ViT-L/16")
