"""Self-distillation (DINO) of Fashion-MNIST without labels, on a CPU.

    python train.py --config=configs/dino/fashion_mnist.py --workdir=runs/dino_fashion_mnist

Two crops of 28 pixels and four of 14 of every image, mirrored at random; colours are not changed.

Known to reach: nothing is published for this setting.
Reached by us: 69.4 % with k-NN (10,000 training images), 64.5 % before training
(docs/self_supervised.md).
Cost: 138,240 parameters of the encoder; about nine minutes on one core.
"""

from vit_jax.config import default_config


def get_config():
    config = default_config()
    config.task = "self_distillation"
    config.dataset = "tfds:fashion_mnist"
    config.data.update(labels=False, mean=(0.286,), std=(0.353,))  # of the training images
    config.model.update(name="ViT-Ti/16", image_size=28, patch_size=7, depth=4)
    config.model.update(in_channels=1, width=64, heads=4, mlp_width=128)
    config.model.update(pool="mean", init_scheme="trunc02")
    config.objective.update(head_width=128, bottleneck=32, prototypes=512)
    config.objective.update(local_crops=4, local_size=14, local_scale=(0.1, 0.5))
    config.objective.update(global_scale=(0.5, 1.0))
    config.objective.update(color_jitter=0.0, grayscale=0.0, local_blur=0.0)
    config.objective.update(blur=(0.0,), solarize=(0.0,))
    config.objective.update(teacher_momentum=0.99)
    config.optimizer.update(learning_rate=1e-3, weight_decay=0.04, weight_decay_end=0.4, clip=3.0)
    config.schedule.warmup = "10%"
    config.batch_size = 128
    config.duration = "1.7 epochs"
    config.evaluate.every = config.duration
    config.checkpoint.every = "25%"
    config.log.every = "10%"
    return config
