"""Linear probe of a masked autoencoder: a classifier on frozen features of the class token.

    python train.py --config=configs/mae/probe.py --config.init_from=runs/mae_b16 \
        --config.dataset=folder:PATH --workdir=runs/probe

He et al. (2022), arXiv:2111.06377, table 10: 90 epochs with 10 of warm-up, random crops and flips,
no weight decay. Different from the paper: SGD in place of LARS, and no normalisation over the batch
before the head.

Known to reach: on ImageNet-1k 67.8 % with ViT-B/16, 76.0 % with L/16, 77.2 % with H/14.
Reached by us: not run.
Cost: a forward pass of the model, without a backward pass.
"""

from vit_jax.config import default_config
from vit_jax.config.schema import REQUIRED


def get_config():
    config = default_config()
    config.init_from = REQUIRED
    config.batch_size = 1024  # lowered where there are fewer images
    config.model.pool = "cls"
    config.optimizer.update(name="sgd", learning_rate=0.4, weight_decay=0.0, clip=0.0)
    config.optimizer.lr_multipliers = ((r"(?!head).*", 0.0),)
    config.schedule.warmup = "10 epochs, at most 20%"
    config.augment.update(random_resized_crop=0.08, flip=0.5)
    config.duration = "90 epochs, at least 500 steps, at most 120_000 steps"
    return config
