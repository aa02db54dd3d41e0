"""Your own images, a few hundred to some ten thousand: fine-tuning, or a small model from scratch.

    python train.py --config=configs/images.py --config.dataset=folder:PATH --workdir=runs/mine

With `--config.init_from=WEIGHTS` (a published name, a file, hf://OWNER/NAME, a run folder) it
fine-tunes these weights at their own size, the best choice for a few hundred photographs. Without,
it trains ViT_C of Xiao et al. (2021) at 96 pixels: a stem of convolutions learns from few images,
where large patches do not. `--config.model.image_size=224` is for a GPU and larger data.

The duration depends on the number of images: 100 epochs and at least 1,000 steps from scratch,
20 epochs and at least 300 steps of fine-tuning.

Known to reach: nothing is known of your images.
Reached by us: 60 % of 60 test images after the first 60 steps on 300 JPEG files of three textures,
where guessing reaches 33 %; whole runs were not timed.
Cost: 4,346,146 parameters and 0.18 GMACs an image for 10 classes at 96 pixels; 0.8 seconds a step
on one core of a CPU.
"""

from vit_jax.config import default_config


def get_config(*, init_from=""):
    config = default_config()
    config.dataset = "folder:images"
    config.augment.preset = "light"
    config.objective.label_smoothing = 0.1
    config.optimizer.weight_decay = 0.05
    config.batch_size = 32
    if init_from:
        config.optimizer.learning_rate = 1e-4
        config.schedule.warmup = "10%"
        config.duration = "20 epochs, at least 300 steps, at most 20_000 steps"
    else:
        config.model.update(name="ViTC-1GF", image_size=96)
        config.optimizer.learning_rate = 1e-3
        config.schedule.warmup = "5%"
        config.duration = "100 epochs, at least 1_000 steps, at most 50_000 steps"
    config.log.every = "10 steps"
    return config
