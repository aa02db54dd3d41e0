"""Fine-tuning of trained weights on any data, by one of five settings.

    python train.py --config=configs/finetune.py:vit --config.init_from=WEIGHTS \
        --config.dataset=folder:PATH --workdir=runs/mine

WEIGHTS, without which nothing starts, is a run folder, a file of published weights, hf://OWNER/NAME
or https://...: see docs/weights.md. The model, its activation and its preprocessing come with the
weights; the head is new. `--config.model.image_size=384` fine-tunes at another size.

vit     Dosovitskiy et al. (2021), section 4.1 and appendix B.1.1: SGD with momentum 0.9, cosine, no
        weight decay, gradients clipped at 1, batch 512; 10,000 steps on CIFAR (100 epochs), 20,000
        on ImageNet, and learning rates from 0.001 to 0.06.
deit    Touvron et al. (2021), appendix A.4 and their repository: AdamW at a rate of 5e-6, weight
        decay 1e-8, 30 epochs, with the augmentation of training from scratch.
mae     He et al. (2022), table 9: AdamW, layer-wise decay 0.65, stochastic depth 0.1, 100 epochs,
        mean of the patches in place of the class token.
lora    Hu et al. (2022): the head and additions of rank 8 to attention and MLP learn, all else is
        frozen; AdamW at 1e-3, 10 epochs. `python -m vit_jax convert` merges them.
probe   only the head learns, all else is frozen: SGD with momentum, 10 epochs.

Lengths are epochs with a least and a most number of steps, so that the same setting suits 20 images
and a million; where there are fewer than 512 images, a step takes fewer (docs/training.md).

Known to reach: 98.13 % on CIFAR-10 with ViT-B/16 by `vit` (Dosovitskiy et al., table 5, from
ImageNet-21k 98.95 %); 83.664 % on ImageNet-1k with ViT-B/16 by `mae`.
Reached by us: docs/results/finetuning.md, on Fashion-MNIST and the digits.
Cost: that of the model; with `probe` the backward pass is left out, about a third is left.
"""

from vit_jax.config import default_config
from vit_jax.config.schema import REQUIRED
from vit_jax.errors import UserError

PRESETS = ("vit", "deit", "mae", "lora", "probe")


def get_config(preset="vit"):
    if preset not in PRESETS:
        raise UserError(f"configs/finetune.py has no preset {preset!r}; there are {PRESETS}")
    config = default_config()
    config.init_from = REQUIRED
    config.batch_size = 512  # lowered where there are fewer images
    config.data.validation = ""
    if preset == "vit":
        config.optimizer.name = "sgd"
        config.optimizer.momentum = 0.9
        config.optimizer.moment_dtype = "bfloat16"
        config.optimizer.learning_rate = 0.03
        config.optimizer.weight_decay = 0.0
        config.optimizer.clip = 1.0
        config.schedule.warmup = "5%"
        config.duration = "100 epochs, at least 500 steps, at most 20_000 steps"
        config.augment.flip = 0.5
    elif preset == "deit":
        config.optimizer.learning_rate = 5e-6
        config.optimizer.weight_decay = 1e-8
        config.optimizer.clip = 0.0
        config.schedule.name = "constant"
        config.schedule.warmup = "5 epochs, at most 20%"
        config.objective.label_smoothing = 0.1
        config.augment.preset = "deit"
        config.model.drop_path = 0.1
        config.duration = "30 epochs, at least 1000 steps, at most 100_000 steps"
    elif preset == "mae":
        config.optimizer.learning_rate = 1e-3  # 5e-4 for a batch of 256
        config.optimizer.b2 = 0.999
        config.optimizer.weight_decay = 0.05
        config.optimizer.layer_decay = 0.65
        config.optimizer.clip = 0.0
        config.schedule.warmup = "5 epochs, at most 20%"
        config.objective.label_smoothing = 0.1
        config.augment.preset = "deit"
        config.augment.repeats = 1
        config.model.drop_path = 0.1
        config.model.pool = "mean"
        config.model.pool_norm = "after"
        config.duration = "100 epochs, at least 500 steps, at most 300_000 steps"
    elif preset == "lora":
        config.model.lora_rank = 8
        config.optimizer.learning_rate = 1e-3
        config.optimizer.lr_multipliers = ((r"(?!.*_lora/|head).*", 0.0),)
        config.duration = "10 epochs, at least 500 steps, at most 20_000 steps"
    else:
        config.optimizer.name = "sgd"
        config.optimizer.learning_rate = 0.1
        config.optimizer.weight_decay = 0.0
        config.optimizer.lr_multipliers = ((r"(?!head).*", 0.0),)
        config.schedule.warmup = "0%"
        config.duration = "10 epochs, at least 500 steps, at most 20_000 steps"
    return config
