"""ADE20K with SegFormer-B0: 150 classes of pixels, from an encoder that knows ImageNet.

    python train.py --config=configs/dense/segformer_b0_ade20k.py --workdir=runs/segformer_b0 \\
        --config.init_from=mit_b0.pth

Xie et al. (2021), "SegFormer", arXiv:2105.15203, section 4.1, and their repository. `init_from` is
the authors' encoder trained on ImageNet, or a MiT-B0 trained here; the head begins at random.

Known to reach: a mean IoU of 37.4 % at one scale.
Differences: colours are jittered by brightness, contrast and saturation, without hue, and images
are judged stretched to 512 x 512 pixels, where the authors keep their shape.
Reached by us: not run; two updates on scenes are part of the tests.
Cost: 3,752,694 parameters, 8.4 GMACs an image; 2.56 million crops of 512 pixels.
"""

from vit_jax.config import default_config


def get_config():
    config = default_config()
    config.dataset = "dense:scene_parse150"
    config.data.update(labels=False, test="test", workers=8)
    config.data.update(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    config.data.update(interpolation="bilinear", resize="squash")
    config.augment.update(scale_jitter=0.5, scale_jitter_max=2.0, class_share=0.75)
    config.augment.update(flip=0.5, color_jitter=0.4)
    config.task = "segmentation"
    config.model.update(name="SegFormer-B0", image_size=512)
    config.model.backbone_fields = {"drop_path": 0.1}
    config.precision = "bfloat16"
    config.optimizer.update(learning_rate=6e-5, weight_decay=0.01, clip=0.0)
    config.optimizer.lr_multipliers = (("head/.*", 10.0),)
    config.schedule.update(name="linear", warmup="1_500 steps")
    config.batch_size = 16
    config.duration = "160_000 steps"
    config.log.every = "50 steps"
    config.evaluate.every = "16_000 steps"
    config.checkpoint.every = "4_000 steps"
    return config
