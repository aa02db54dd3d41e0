"""A class for every pixel of scenes made on the spot: a small ResNet with SegFormer's decoder.

    python train.py --config=configs/dense/segmentation_scenes.py --workdir=runs/segmentation_scenes

A scene shows real scanned digits before a ground of smooth noise; a pixel is ground or one of ten
digits, and test scenes show digits that no training scene has. Strokes are one to three pixels
wide, and the finest map has a stride of 4: no decoder of it reaches more than some 93 %.

Known to reach: a mean IoU of 8.11 % with ground alone and 10.83 % with the mask of the nearest
training scene (`python -m benchmarks.segmentation_baselines`).
Reached by us: 76.63 % (mean of three seeds: 76.73, 76.32, 76.83), docs/results/scenes.md. A run
should reach 74 %.
Cost: 720,411 parameters, 32 MMACs an image; 128,000 scenes, none of them twice, 12 minutes of one
idle core.
"""

from vit_jax.config import default_config


def get_config():
    config = default_config()
    config.dataset = "scenes:digits:128000"
    config.data.labels = False
    config.task = "segmentation"
    config.model.update(name="Segmentation", image_size=64, decoder="mlp", decoder_width=64)
    config.model.update(backbone_name="ResNet", decoder_dropout=0.0)
    config.model.backbone_fields = {
        "depths": (2, 2, 2),
        "widths": (32, 64, 128),
        "block": "basic",
        "stem_width": 16,
    }
    config.optimizer.update(learning_rate=2e-3, weight_decay=0.05)
    config.batch_size = 32
    config.schedule.warmup = "200 steps, at most 20%"
    config.duration = "1 epoch"
    config.log.every = "100 steps"
    config.evaluate.every = "1 epoch"
    config.checkpoint.every = "25%"
    return config
