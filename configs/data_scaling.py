"""Fashion-MNIST with 100 to 60,000 images: a ViT, a DeiT, a ResNet, a ConvNeXt and a hybrid.

    python train.py --config=configs/data_scaling.py:resnet --config.data.limit=600 \
        --workdir=runs/resnet_600
    python train.py --config=configs/data_scaling.py:deit --config.data.limit=600 \
        --config.distillation.teacher=runs/resnet_600 --workdir=runs/deit_600

vit         4 blocks of width 64 on patches of 7 pixels: 138,890 parameters.
deit        The same with a distillation token, whose head learns from a teacher: 139,796.
resnet      3 stages of one block, 3 x 3 stem: 19,810.
convnext    2 stages of two blocks, patches of 4 pixels: 97,962.
hybrid      3 blocks of width 64 on two stages of a ResNet: 140,410.

All have 2.3 to 2.8 MMACs, the same augmentation and batches of 64; images of the last two are
resized to 32 pixels. `python -m benchmarks.data_scaling` chooses the learning rate of each by
validation images, and trains all of them on all numbers of images.

Known to reach: nothing is published for models this small.
Reached by us: docs/results/data_scaling.md.
Cost: 1,000 updates take about a minute of one core; 5 epochs of all images are 4,688.
"""

from vit_jax.config import default_config
from vit_jax.configs.common.presets import choose

_VIT = {"image_size": 28, "patch_size": 7, "width": 64, "depth": 4, "heads": 4, "mlp_width": 128}
_RESNET = {"block": "basic", "depths": (1, 1, 1), "widths": (8, 16, 32), "stem_width": 8}
_CONVNEXT = {"patch_size": 4, "kernel_size": 5, "depths": (2, 2), "widths": (32, 64)}
_HYBRID = {"image_size": 32, "patch_size": 8, "stem_units": (1, 1), "stem_width": 16}
_HYBRID |= {"stem_groups": 4, "width": 64, "depth": 3, "heads": 4, "mlp_width": 128}

MODELS = {
    "vit": {"name": "ViT-Ti/16", "pool": "mean", **_VIT},
    "deit": {"name": "DeiT-Ti/16-distilled", **_VIT},
    "resnet": {"name": "ResNet", "image_size": 28, "small_stem": True, **_RESNET},
    "convnext": {"name": "ConvNeXt", "image_size": 32, "layer_scale": None, **_CONVNEXT},
    "hybrid": {"name": "HybridViT", "pool": "mean", **_HYBRID},
}


def get_config(family="vit"):
    config = default_config()
    config.dataset = "tfds:fashion_mnist"
    config.data.update(mean=(0.286,), std=(0.353,))  # of the training images
    config.model.update(num_classes=10, in_channels=1)
    config.model.update(choose(MODELS, family))
    config.augment.update(flip=0.5, pad_crop=1)
    config.objective.label_smoothing = 0.1
    config.optimizer.update(learning_rate=2e-3, weight_decay=0.05)
    config.schedule.warmup = "5%"
    config.batch_size = 64
    config.duration = "5 epochs"
    config.evaluate.every = "100%"  # once, at the end: the test set chooses nothing
    config.checkpoint.every = "100%"
    config.log.every = "10%"
    return config
