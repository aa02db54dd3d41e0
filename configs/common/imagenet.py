"""Bases of the configs on ImageNet-1k: 1,281,167 training images, 1,000 classes.

ImageNet has to be downloaded by hand and prepared once, with TensorFlow; the run says how. For a
folder with train/ and val/: --config.dataset=folder:PATH --config.data.validation="train[99%:]".
"""

from vit_jax.config import default_config


def base(model: str, **fields):
    """Return the settings of all: one percent of the training images is held out for validation."""
    config = default_config()
    config.dataset = "tfds:imagenet2012"
    config.data.update(train="train[:99%]", validation="train[99%:]", test="validation", workers=8)
    config.model.update(name=model, **fields)
    config.precision = "bfloat16"
    return config


def unlabelled(task: str, model: str, **fields):
    """Return the settings of a task that learns from the images without their labels."""
    config = base(model, **fields)
    config.task = task
    config.data.labels = False
    config.data.update(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), crop=0.875)
    config.checkpoint.every = "1 epoch"
    config.log.every = "50 steps, at most 2%"
    return config


def augreg(model: str, mixup: float, **fields):
    """Return the settings of Steiner et al. (2021), arXiv:2106.10270, light on augmentation.

    Different from the paper: RandAugment is timm's, whose highest level, 10, stands for the
    authors' 15, and which skips every operation half of the time.
    """
    config = base(model, **fields)
    config.data.crop = 0.875
    config.augment.update(random_resized_crop=0.05, flip=0.5, mixup=mixup)
    config.augment.update(policy="rand", rand_n=2, rand_m=10.0, rand_std=0.0)
    # The paper's 1e-4 is not multiplied by the learning rate; AdamW's is, so 1e-4 / 1e-3.
    config.optimizer.update(learning_rate=1e-3, weight_decay=0.1, clip=1.0)
    config.schedule.warmup = "10_000 steps, at most 20%"
    config.evaluate.every = "2500 steps, at most 10%"
    config.checkpoint.every = "1000 steps, at most 10%"
    config.log.every = "50 steps, at most 2%"
    return config


def touvron(model: str, **fields):
    """Return the settings that DeiT and DeiT III share.

    Different from the papers: one percent of the training images is held out to choose by, and the
    learning rate changes with every step rather than every epoch.
    """
    config = base(model, **fields)
    config.data.update(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    config.optimizer.weight_decay = 0.05
    config.schedule.warmup = "5 epochs, at most 20%"
    config.checkpoint.every = "1 epoch, at least 100 steps"
    config.log.every = "100 steps, at most 2%"
    return config


def deit(model: str, **fields):
    """Return the settings of Touvron et al. (2021), arXiv:2012.12877, table 9.

    RandAugment, MixUp or CutMix of every batch, erasing, repeated augmentation, stochastic depth.
    Different from the paper, besides what `touvron` says: there is no cooldown of 10 epochs at the
    last rate.
    """
    config = touvron(model, drop_path=0.1, **fields)
    config.data.crop = 0.875
    config.augment.preset = "deit"
    config.objective.label_smoothing = 0.1
    config.optimizer.update(learning_rate=1e-3, clip=0.0)  # 5e-4 for a batch of 512
    config.schedule.end = 0.01  # 1e-5
    config.batch_size = 1024
    config.duration = "300 epochs"
    config.evaluate.every = "5 epochs"
    return config
