"""DETR with ResNet-50 on COCO, after the paper.

    python train.py --config=configs/dense/detr_r50_coco.py --workdir=runs/detr_r50 \\
        --config.init_from=hf://timm/resnet50.tv_in1k

Carion et al. (2020), "End-to-End Object Detection with Transformers", arXiv:2005.12872, section 4
and appendix A.4.

Known to reach: 42.0 AP after 500 epochs.
Differences: images keep their aspect ratio and are padded to 800 x 800 pixels with a mask, as the
authors pad to the largest image of a batch, but the longer side has at most 800 pixels, where
theirs has 1333; it varies from 480 to 800, without their smaller crops. The learning rate falls as
a cosine over 300 epochs, where theirs falls once to a tenth, after 200 of 300 or 400 of 500.
Reached by us: not run; two updates on scenes are part of the tests.
Cost: 41,577,888 parameters, 60.2 GMACs an image; 35 million images.
"""

from vit_jax.config import default_config


def get_config():
    config = default_config()
    config.dataset = "dense:coco:2017"
    config.task = "detection"
    config.model.update(name="DETR-R50", freeze_norms=True)
    config.data.update(test="validation", resize="pad", interpolation="bilinear")
    config.data.update(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    config.augment.update(flip=0.5, scale_jitter=0.6, scale_jitter_max=1.0)
    config.objective.padding = True
    config.optimizer.update(learning_rate=1e-4, weight_decay=1e-4, clip=0.1)
    config.optimizer.lr_multipliers = (("backbone/.*", 0.1),)
    config.schedule.warmup = "0"
    config.batch_size = 64
    config.duration = "300 epochs"
    config.log.every = "100 steps"
    config.evaluate.every = "10 epochs"
    config.checkpoint.every = "1 epochs"
    return config
