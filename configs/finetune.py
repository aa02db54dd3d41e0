"""Fine-tuning of trained weights on any dataset, with one of five presets.

    python train.py --config=configs/finetune.py:vit --config.init_from=WEIGHTS \
        --config.dataset=folder:PATH --workdir=runs/mine

WEIGHTS is required: a run folder, a file of published weights, hf://OWNER/NAME or https://...
(docs/weights.md). The model, its activation and its preprocessing come with the
weights; the head is new. `--config.model.image_size=384` fine-tunes at another size.

vit     Dosovitskiy et al. (2021), section 4.1 and appendix B.1.1: SGD with momentum 0.9, cosine, no
        weight decay, gradients clipped at 1, batch 512; 10,000 steps on CIFAR (100 epochs), 20,000
        on ImageNet, and learning rates from 0.001 to 0.06.
deit    Touvron et al. (2021), appendix A.4 and their repository: AdamW at a rate of 5e-6, weight
        decay 1e-8, 30 epochs, with the augmentation of training from scratch.
mae     He et al. (2022), table 9: AdamW, layer-wise decay 0.65, stochastic depth 0.1, 100 epochs,
        mean of the patches in place of the class token.
lora    Hu et al. (2022): trains the head and additions of rank 8 to attention and MLP, all else is
        frozen; AdamW at 1e-3, 10 epochs. `python -m vit_jax convert` merges them.
probe   trains the head alone, all else is frozen: SGD with momentum, 10 epochs.

Durations are epochs between a minimum and a maximum of steps, so that one preset suits 20 images
and a million; with fewer than 512 images the batch is smaller (docs/training.md).

Known to reach: 98.13 % on CIFAR-10 with ViT-B/16 by `vit` (Dosovitskiy et al., table 5, from
ImageNet-21k 98.95 %); 83.664 % on ImageNet-1k with ViT-B/16 by `mae`.
Reached by us: docs/results/finetuning.md, on Fashion-MNIST and the digits.
Cost: that of the model; `probe` needs no backward pass, which leaves about a third.
"""

from vit_jax.config import default_config
from vit_jax.config.schema import REQUIRED
from vit_jax.configs.common.presets import choose


def vit(config):
    config.optimizer.update(name="sgd", momentum=0.9, moment_dtype="bfloat16")
    config.optimizer.update(learning_rate=0.03, weight_decay=0.0, clip=1.0)
    config.schedule.warmup = "5%"
    config.duration = "100 epochs, at least 500 steps, at most 20_000 steps"
    config.augment.flip = 0.5


def deit(config):
    config.optimizer.update(learning_rate=5e-6, weight_decay=1e-8, clip=0.0)
    config.schedule.update(name="constant", warmup="5 epochs, at most 20%")
    config.objective.label_smoothing = 0.1
    config.augment.preset = "deit"
    config.model.drop_path = 0.1
    config.duration = "30 epochs, at least 1000 steps, at most 100_000 steps"


def mae(config):
    config.optimizer.learning_rate = 1e-3  # 5e-4 for a batch of 256
    config.optimizer.update(b2=0.999, weight_decay=0.05, layer_decay=0.65, clip=0.0)
    config.schedule.warmup = "5 epochs, at most 20%"
    config.objective.label_smoothing = 0.1
    config.augment.update(preset="deit", repeats=1)
    config.model.update(drop_path=0.1, pool="mean", pool_norm="after")
    config.duration = "100 epochs, at least 500 steps, at most 300_000 steps"


def lora(config):
    config.model.lora_rank = 8
    config.optimizer.learning_rate = 1e-3
    config.optimizer.lr_multipliers = ((r"(?!.*_lora/|head).*", 0.0),)
    config.duration = "10 epochs, at least 500 steps, at most 20_000 steps"


def probe(config):
    config.optimizer.update(name="sgd", learning_rate=0.1, weight_decay=0.0)
    config.optimizer.lr_multipliers = ((r"(?!head).*", 0.0),)
    config.schedule.warmup = "0%"
    config.duration = "10 epochs, at least 500 steps, at most 20_000 steps"


PRESETS = {"vit": vit, "deit": deit, "mae": mae, "lora": lora, "probe": probe}


def get_config(preset="vit"):
    config = default_config()
    config.init_from = REQUIRED
    config.batch_size = 512  # lowered where there are fewer images
    config.data.validation = ""
    choose(PRESETS, preset)(config)
    return config
