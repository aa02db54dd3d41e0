"""Self-distillation (DINO) of real scanned digits: features from images without labels, on a CPU.

    python train.py --config=configs/dino/digits.py --workdir=runs/dino_digits

The model of configs/digits.py with a class token, two crops of 16 pixels and four of 8 of every
image. No image is mirrored, and no colours are changed.

Known to reach: nothing is published for these images.
Reached by us: not run as a whole; two updates are part of the tests.
Cost: about a minute on one core, reckoned from the time of an update.
"""

from vit_jax.configs.common import digits


def get_config():
    config = digits.unlabelled(
        "self_distillation", "Digits-ViT-64/4", pool="cls", init_scheme="trunc02"
    )
    config.objective.update(head_width=256, bottleneck=64, prototypes=512)
    config.objective.update(local_crops=4, local_size=8, local_scale=(0.2, 0.5))
    config.objective.update(global_scale=(0.5, 1.0), flip=0.0)
    config.objective.update(color_jitter=0.0, grayscale=0.0, local_blur=0.0)
    config.objective.update(blur=(0.0,), solarize=(0.0,))
    config.objective.teacher_momentum = 0.99
    config.optimizer.update(learning_rate=1e-3, weight_decay=0.04, weight_decay_end=0.4)
    config.schedule.warmup = "10%"
    config.duration = "10 epochs"
    config.log.every = "2 epochs, at most 1000 steps"
    config.evaluate.every = "10 epochs"
    config.checkpoint.every = "10 epochs"
    return config
