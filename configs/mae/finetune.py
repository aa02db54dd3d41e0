"""Fine-tuning of a masked autoencoder on labelled images, with the settings of three sizes.

    python train.py --config=configs/mae/finetune.py:b16 --config.init_from=runs/mae_b16 \
        --config.dataset=folder:PATH --workdir=runs/mine

He et al. (2022), arXiv:2111.06377, table 9, and their repository's FINETUNE.md. The encoder comes
from `init_from`, a run of pre-training or a published file; the head is new and starts at zero.
Patches are averaged, and the norm after the average begins as the encoder's last one, where the
authors begin it anew.

Known to reach: on ImageNet-1k 83.664 % with ViT-B/16, 85.952 % with L/16, 86.928 % with H/14.
Reached by us: docs/self_supervised.md, on the digits.
Cost: that of the model on all of its patches.
"""

from vit_jax.config import default_config
from vit_jax.config.schema import REQUIRED
from vit_jax.configs.common.presets import choose

# Learning rate for 1,024 images, layer-wise decay, stochastic depth, epochs.
SIZES = {
    "b16": (2e-3, 0.65, 0.1, 100),
    "l16": (4e-3, 0.75, 0.2, 50),
    "h14": (4e-3, 0.75, 0.3, 50),
}


def get_config(preset="b16"):
    rate, decay, drop_path, epochs = choose(SIZES, preset)
    config = default_config()
    config.init_from = REQUIRED
    config.batch_size = 1024  # lowered where there are fewer images
    config.model.update(pool="mean", pool_norm="after", drop_path=drop_path)
    config.optimizer.update(learning_rate=rate, layer_decay=decay, weight_decay=0.05, clip=0.0)
    config.schedule.warmup = "5 epochs, at most 20%"
    config.objective.label_smoothing = 0.1
    config.augment.update(preset="deit", repeats=1)
    config.duration = f"{epochs} epochs, at least 500 steps, at most 300_000 steps"
    return config
