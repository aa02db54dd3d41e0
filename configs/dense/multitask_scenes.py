"""One model for four tasks: scenes with masks, depth and boxes, and single digits with labels.

    python train.py --config=configs/dense/detection_scenes.py:backbone --workdir=runs/backbone
    python train.py --config=configs/dense/multitask_scenes.py --config.init_from=runs/backbone \
        --workdir=runs/multitask_scenes

A small ViT on a convolutional stem, with a head for each task. Of four training images three are
scenes, which have no label, and one is a digit, which has nothing else; each head learns from the
images that have its truth.

Known to reach: nothing is published for these scenes.
Reached by us, mean of three seeds: an accuracy of 97.1 %, a mean IoU of 50.3 %, a delta1 of 94.1 %
and an AP of 4.8 %, where models of one task have 98.8, 51.6, 95.3 and 7.5: docs/results/scenes.md.
Cost: 568,381 parameters, 60 MMACs an image; 25,600 images, some 6 minutes of one core after the
backbone's.
"""

from vit_jax.config import default_config

SEGMENTATION = {"model": "Segmentation", "num_classes": 11, "decoder": "linear"}
DEPTH = {"model": "DPT", "blocks": (0, 1, 2, 3), "widths": (16, 24, 32, 32), "fusion_width": 16}
DEPTH |= {"head_width": 8, "readout": "ignore", "max_depth": 15.0}
DETECTION = {"model": "DETR", "num_classes": 10, "queries": 10, "width": 64, "heads": 4}
DETECTION |= {"encoder_depth": 1, "decoder_depth": 2, "mlp_width": 128, "dropout": 0.0}


def get_config():
    config = default_config()
    config.dataset = "mix:scenes:digits:20000=3,digits=1"
    config.task = "multitask"
    config.model.update(name="UniversalViT", image_size=64, in_channels=3)
    config.model.backbone_name = "ConvStemViT"
    config.model.backbone_fields = {
        **{"patch_size": 8, "stem_channels": (16, 32, 64), "width": 96, "depth": 4, "heads": 4},
        **{"mlp_width": 192, "pool": "mean"},
    }
    config.model.task_heads = {
        "segmentation": SEGMENTATION,
        "depth": DEPTH,
        "detection": DETECTION,
    }
    # So that all tasks have gradients of about one size in the backbone.
    config.objective.weights = "classification=0.2,segmentation=8,depth=5,detection=0.25"
    config.optimizer.update(learning_rate=1e-3, weight_decay=0.05)
    config.batch_size = 32
    config.schedule.warmup = "100 steps, at most 20%"
    config.duration = "800 steps"
    config.log.every = "100 steps"
    config.evaluate.every = "100%"
    config.checkpoint.every = "25%"
    return config
