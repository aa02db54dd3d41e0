"""Digits that move left, right, up or down: a TimeSformer on clips, in minutes on a CPU.

    python train.py --config=configs/video/moving_digits.py --workdir=runs/moving_digits

A single frame says nothing about the direction, see `vit_jax/data/sources/clips/moving.py`. The
same model on the middle frame of each clip alone is
`--config.model.num_frames=1 --config.model.tubelet_size=1`.

Known to reach: chance is 25 %; nothing is published for these clips.
Reached by us: 100.00, 100.00 and 100.00 % of 1,000 test clips for the seeds 0, 1 and 2, at the last
epoch; on the middle frame alone 25.00, 25.00 and 25.00 %.
Cost: 151,876 parameters, 10 MMACs a clip; eight and a half minutes on two cores beside much other
work, and 1.9 TFLOP in all.
"""

from vit_jax.config import default_config


def get_config():
    config = default_config()
    config.dataset = "moving:digits"
    config.batch_size = 64
    config.model.name = "TimeSformer"
    config.model.update(num_frames=8, tubelet_size=2, image_size=32, patch_size=8, in_channels=1)
    config.model.update(width=64, depth=2, heads=4)
    config.data.crop = 1.0
    config.optimizer.learning_rate = 2e-3
    config.schedule.warmup = "1 epochs, at most 20%"
    config.duration = "4 epochs"
    config.log.every = "1 epochs, at most 1000 steps"
    config.evaluate.every = "4 epochs"
    config.checkpoint.every = "4 epochs"
    return config
