"""Self-distillation (DINO) of your own images, with or without labels.

    python train.py --config=configs/dino/images.py --config.dataset=folder:PATH --workdir=runs/dino
    python train.py --config=configs/finetune.py --config.init_from=runs/dino \
        --config.dataset=folder:LABELLED --workdir=runs/mine

PATH may be a flat folder of images, or one with subfolders, which are not looked at. A ViT of 6
blocks of width 192 sees two crops of 96 pixels and six of 48 of every image, in changed colours.
`--config.model.name=ViT-S/16 --config.model.image_size=224 --config.objective.local_size=96` is for
a GPU and larger data; so is a number of prototypes above 2,048. The duration depends on the number
of images: 200 epochs and at least 1,000 steps.

Known to reach: nothing is known of your images.
Reached by us: not run as a whole; two updates are part of the tests.
Cost: 2,734,656 parameters of the encoder; the first step shows the time on your machine.
"""

from vit_jax.configs.common import own_images


def get_config():
    config = own_images.base("self_distillation", pool="cls", init_scheme="trunc02", drop_path=0.1)
    config.objective.update(head_width=1024, bottleneck=128, prototypes=2048)
    config.objective.update(local_crops=6, blur_sigma=(0.1, 1.0), temperature_warmup="10%")
    config.optimizer.update(learning_rate=5e-4, weight_decay=0.04, weight_decay_end=0.4, clip=3.0)
    config.schedule.warmup = "10%"
    config.duration = "200 epochs, at least 1_000 steps, at most 200_000 steps"
    return config
