"""ImageNet-1k from scratch with ViT-S/16, after "How to train your ViT?" (AugReg).

    python train.py --config=configs/imagenet_augreg_s16.py --workdir=runs/imagenet_augreg_s16

Steiner et al. (2021), arXiv:2106.10270: the 2020 paper's ViT with a class token, learned positions
and a hidden layer before the head; augmentation "medium2" is RandAugment and MixUp with alpha 0.5.
`configs/imagenet_s16.py` is the same authors' simpler and better recipe of a year later.
ImageNet has to be fetched by hand and prepared once, with TensorFlow; the run says how. For a
folder with train/ and val/: --config.dataset=folder:PATH --config.data.validation="train[99%:]".

Known to reach: 76.1 % in 300 epochs and 74.8 in 150 with the weaker RandAugment and MixUp of Beyer
et al. (2022), "original + RandAug + MixUp". Different here: RandAugment is timm's, whose highest
level, 10, stands for the authors' 15.
Reached by us: not run; two updates on mocked data are part of the tests.
Cost: 22,198,504 parameters, 4.6 GMACs a picture; 381 million pictures, 10.5 EFLOP in all.
"""

from vit_jax.config import default_config


def get_config():
    config = default_config()
    config.dataset = "tfds:imagenet2012"
    config.data.train = "train[:99%]"
    config.data.validation = "train[99%:]"
    config.data.test = "validation"
    config.data.crop = 0.875
    config.data.workers = 8

    config.model.name = "ViT-S/16"
    config.model.representation_size = 384
    config.precision = "bfloat16"

    config.augment.random_resized_crop = 0.05
    config.augment.flip = 0.5
    config.augment.policy = "rand"
    config.augment.rand_n = 2
    config.augment.rand_m = 10.0
    config.augment.rand_std = 0.0
    config.augment.mixup = 0.5

    config.optimizer.learning_rate = 1e-3
    # The paper's 1e-4 is not multiplied by the learning rate; AdamW's is, so 1e-4 / 1e-3.
    config.optimizer.weight_decay = 0.1
    config.optimizer.moment_dtype = "bfloat16"
    config.optimizer.clip = 1.0
    config.schedule.warmup = "10_000 steps, at most 20%"
    config.batch_size = 4096
    config.duration = "300 epochs"

    config.evaluate.every = "2500 steps, at most 10%"
    config.checkpoint.every = "1000 steps, at most 10%"
    config.log.every = "50 steps, at most 2%"
    return config
