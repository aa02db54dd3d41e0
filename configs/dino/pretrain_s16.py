"""Pre-training of ViT-S/16 on ImageNet-1k without labels, by self-distillation (DINO).

    python train.py --config=configs/dino/pretrain_s16.py --workdir=runs/dino_s16

Caron et al. (2021), "Emerging Properties in Self-Supervised Vision Transformers", arXiv:2104.14294,
and the full command of 300 epochs in their repository's README. Different from theirs: one percent
of the training images is held out for the loss of validation, gradients are clipped by their global
norm instead of each tensor's, tokens and positions are not decayed, the teacher's temperature rises
with every step rather than every epoch, and bfloat16 takes the place of float16.

Known to reach: 73.3 % with k-NN and 76.1 % with a linear probe, by the authors' code.
Reached by us: not run; two updates of a small model are part of the tests.
Cost: 21,665,664 parameters of the encoder and 22,352,128 of the head, once for the student and once
for the teacher; two crops of 224 and eight of 96 pixels of every image.
"""

from vit_jax.configs.common import imagenet


def get_config():
    config = imagenet.unlabelled(
        "self_distillation", "ViT-S/16", pool="cls", init_scheme="trunc02", drop_path=0.1
    )
    config.model.pos_resize = "dinov2-bicubic"
    config.objective.update(local_size=96, norm_last_layer=False)
    config.objective.update(teacher_temperature=0.07, temperature_warmup="30 epochs, at most 30%")
    config.optimizer.update(learning_rate=2e-3, weight_decay=0.04, weight_decay_end=0.4, clip=3.0)
    config.schedule.update(warmup="10 epochs, at most 20%", end=5e-4)
    config.batch_size = 1024  # the rate is 5e-4 for 256 images
    config.duration = "300 epochs"
    config.evaluate.every = "10 epochs"
    return config
