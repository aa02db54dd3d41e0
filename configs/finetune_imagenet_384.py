"""ImageNet-1k at 384 pixels with ViT-B/16, the fine-tuning of the 2020 paper.

    python train.py --config=configs/finetune_imagenet_384.py --config.init_from=WEIGHTS \
        --workdir=runs/finetune_imagenet_384

Dosovitskiy et al. (2021), "An Image is Worth 16x16 Words", section 4.1 and their code: SGD with
momentum 0.9, cosine schedule, no weight decay, gradients clipped at 1. WEIGHTS is required:
a run folder, a file of published weights, hf://OWNER/NAME or https://... (docs/weights.md).

Known to reach: 84.53 %, from parameters learned on ImageNet-21k, in 6.5 hours on A100 GPUs.
Reached by us: not run; two updates on mocked data are part of the tests.
Cost: 86,859,496 parameters, 55.5 GMACs an image; 10 million images, 3.4 EFLOP in all.
"""

from vit_jax.config.schema import REQUIRED
from vit_jax.configs.common import imagenet
from vit_jax.configs.finetune import vit


def get_config():
    config = imagenet.base("ViT-B/16")
    vit(config)
    config.init_from = REQUIRED
    config.model.update(image_size=384, activation="gelu_tanh")  # of Google's parameters
    config.augment.random_resized_crop = 0.05
    config.schedule.warmup = "500 steps, at most 20%"
    config.batch_size = 512
    config.duration = "10 epochs, at least 500 steps, at most 20_000 steps"  # 20,000 on ImageNet
    config.evaluate.every = "2000 steps, at most 10%"
    config.checkpoint.every = "500 steps, at most 10%"
    config.log.every = "50 steps, at most 2%"
    return config
