"""Depth of scenes made on the spot, from one image: a small ViT with the decoder of DPT.

    python train.py --config=configs/dense/depth_scenes.py --workdir=runs/depth_scenes

A scene shows real scanned digits before a ground of smooth noise; near digits are large, and the
ground is darker the farther it is. Depths run from 2 to 12; test scenes show digits that no
training scene has.

Known to reach: nothing is published for these scenes. Without learning
(`python -m benchmarks.depth_baselines`) the median depth of each pixel reaches a delta1 of 87.8 %
and an AbsRel of 0.304, and the depth of the nearest training scene 87.6 % and 0.248.
Reached by us: a delta1 of 94.13 % and an AbsRel of 0.067 (mean of three seeds: 94.55, 93.78 and
94.06 %), docs/results/scenes.md. A run should reach 93 % and 0.08.
Cost: 293,897 parameters; 24,000 scenes, about 7 minutes of one core.
"""

from vit_jax.config import default_config


def get_config():
    config = default_config()
    config.dataset = "scenes:digits"
    config.data.labels = False
    config.task = "depth"
    config.model.update(name="DPT", image_size=64, readout="ignore", max_depth=15.0)
    config.model.update(blocks=(0, 1, 2, 3), widths=(16, 24, 32, 32), fusion_width=16)
    config.model.update(head_width=8, backbone_name="ViT")
    config.model.backbone_fields = {
        **{"patch_size": 8, "width": 64, "depth": 4, "heads": 2},
        **{"pool": "mean", "class_token": False},
    }
    config.optimizer.update(learning_rate=2e-3, weight_decay=0.05)
    config.batch_size = 64
    config.schedule.warmup = "60 steps, at most 20%"
    config.duration = "6 epochs"
    config.log.every = "20 steps"
    config.evaluate.every = "2 epochs"
    config.checkpoint.every = "2 epochs"
    return config
