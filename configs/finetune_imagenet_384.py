"""ImageNet-1k at 384 pixels with ViT-B/16, the fine-tuning of the 2020 paper.

    python train.py --config=configs/finetune_imagenet_384.py --config.init_from=WEIGHTS \
        --workdir=runs/finetune_imagenet_384

Dosovitskiy et al. (2021), "An Image is Worth 16x16 Words", section 4.1 and their code: SGD with
momentum 0.9, cosine schedule, no weight decay, gradients clipped at 1. WEIGHTS, without which
nothing starts, is a run folder, a file of published weights, hf://OWNER/NAME or https://...
(docs/weights.md).
ImageNet has to be fetched by hand and prepared once, with TensorFlow; the run says how. For a
folder with train/ and val/: --config.dataset=folder:PATH --config.data.validation="train[99%:]".

Known to reach: 84.53 %, from parameters learned on ImageNet-21k, in 6.5 hours on A100 GPUs.
Reached by us: not run; two updates on mocked data are part of the tests.
Cost: 86,859,496 parameters, 55.5 GMACs a picture; 10 million pictures, 3.4 EFLOP in all.
"""

from vit_jax.config import default_config
from vit_jax.config.schema import REQUIRED


def get_config():
    config = default_config()
    config.dataset = "tfds:imagenet2012"
    config.data.train = "train[:99%]"
    config.data.validation = "train[99%:]"
    config.data.test = "validation"
    config.data.workers = 8

    config.init_from = REQUIRED
    config.model.name = "ViT-B/16"
    config.model.image_size = 384
    config.model.activation = "gelu_tanh"  # of Google's parameters
    config.precision = "bfloat16"

    config.augment.random_resized_crop = 0.05
    config.augment.flip = 0.5

    config.optimizer.name = "sgd"
    config.optimizer.momentum = 0.9
    config.optimizer.moment_dtype = "bfloat16"
    config.optimizer.learning_rate = 0.03
    config.optimizer.weight_decay = 0.0
    config.optimizer.clip = 1.0
    config.schedule.warmup = "500 steps, at most 20%"
    config.batch_size = 512
    config.duration = "10 epochs, at least 500 steps, at most 20_000 steps"  # 20,000 on ImageNet

    config.evaluate.every = "2000 steps, at most 10%"
    config.checkpoint.every = "500 steps, at most 10%"
    config.log.every = "50 steps, at most 2%"
    return config
