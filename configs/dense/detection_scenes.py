"""YOLOS on scenes of scanned digits: boxes and classes of one to five digits of 64 x 64 pixels.

    python train.py --config=configs/dense/detection_scenes.py --workdir=runs/detection_scenes

A small ViT with a convolutional stem and ten detection tokens.

Known to reach: the objects of the nearest of 4,000 training scenes have an AP of 0.0015 and an AP50
of 0.0043, the same boxes for all 0 (`python -m benchmarks.detection_baselines`).
Reached by us: not run to its end. After 5,000 of 7,500 steps of a shorter run AP was 0.0079 and
AP50 0.0216: boxes are learned first (matched ones have a GIoU of 0.67), classes had hardly begun.
16 scenes are learned by heart in 200 steps.
Cost: 250,911 parameters; about 20 minutes on two idle cores.
"""

from vit_jax.config import default_config


def get_config():
    config = default_config()
    config.dataset = "scenes:digits:20000"
    config.task = "detection"
    config.model.update(
        name="YOLOS",
        backbone_name="ConvStemViT",
        backbone_fields={
            "patch_size": 8,
            "stem_channels": (16, 32, 64),
            "width": 64,
            "depth": 4,
            "heads": 4,
            "mlp_width": 256,
            "pool": "mean",
        },
        queries=10,
        image_size=64,
    )
    config.optimizer.update(learning_rate=1.5e-3, weight_decay=0.02)
    config.schedule.warmup = "300 steps, at most 20%"
    config.batch_size = 16
    config.duration = "16000 steps"
    config.log.every = "250 steps"
    config.evaluate.every = "4000 steps"
    config.checkpoint.every = "4000 steps"
    return config
