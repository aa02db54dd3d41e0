"""One model for four tasks: scenes with masks, depth and boxes, and single digits with labels.

    python train.py --config=configs/dense/multitask_scenes.py --workdir=runs/multitask_scenes

A small ViT with a head for each task. Of four training images three are scenes, which have no
label, and one is a digit, which has nothing else; each head learns from the images that have its
truth.
"""

from vit_jax.config import default_config

SEGMENTATION = {"model": "Segmentation", "num_classes": 11, "decoder": "mask", "decoder_depth": 1}
DEPTH = {"model": "DPT", "blocks": (1, 3, 5, 5), "widths": (24, 24, 48, 48), "fusion_width": 24}
DEPTH |= {"head_width": 16, "readout": "ignore", "max_depth": 20.0}
DETECTION = {"model": "DETR", "num_classes": 10, "queries": 12, "width": 64, "heads": 4}
DETECTION |= {"encoder_depth": 1, "decoder_depth": 2, "mlp_width": 128, "dropout": 0.0}


def get_config():
    config = default_config()
    config.dataset = "mix:scenes:digits=3,digits=1"
    config.task = "multitask"
    config.model.update(name="UniversalViT", image_size=64, backbone_name="ViT", in_channels=3)
    config.model.backbone_fields = {
        **{"patch_size": 8, "width": 96, "depth": 6, "heads": 3},
        **{"pool": "mean", "class_token": False},
    }
    config.model.task_heads = {
        "segmentation": SEGMENTATION,
        "depth": DEPTH,
        "detection": DETECTION,
    }
    config.optimizer.update(learning_rate=1e-3, weight_decay=0.05)
    config.batch_size = 32
    config.schedule.warmup = "1 epochs, at most 20%"
    config.duration = "5 epochs"
    config.log.every = "25 steps"
    config.evaluate.every = "5 epochs"
    config.checkpoint.every = "5 epochs"
    return config
