"""Your own images at their own aspect ratio, within a budget of 64 patches of 16 x 16 pixels.

    python train.py --config=configs/naflex/images.py --config.dataset=folder:PATH \
        --workdir=runs/naflex

Nothing is cropped, and no aspect ratio changes by more than the rounding to whole patches: for
documents, panoramas, screenshots and everything else whose edges count. Images of one size cost as
much as any others: `data.max_tokens` is the number of tokens of each. With
`--config.init_from=hf://google/siglip2-base-patch16-naflex` it fine-tunes SigLIP 2, with its 256
tokens; that is for a GPU.

Known to reach: nothing is known of your images.
Reached by us: not run at this size.
Cost: 2,831,434 parameters and 0.19 GMACs an image for 10 classes.
"""

from vit_jax.config import default_config


def get_config(*, init_from=""):
    config = default_config()
    config.dataset = "folder:images"
    config.augment.flip = 0.5
    config.objective.label_smoothing = 0.1
    config.optimizer.weight_decay = 0.05
    config.batch_size = 32
    if init_from:
        config.optimizer.learning_rate = 3e-5
        config.schedule.warmup = "10%"
        config.duration = "20 epochs, at least 300 steps, at most 20_000 steps"
    else:
        config.data.max_tokens = 64
        sizes = {"width": 192, "depth": 6, "heads": 3, "mlp_width": 768}
        config.model.update(name="NaFlexViT", image_size=128, pool="mean", **sizes)
        config.optimizer.learning_rate = 1e-3
        config.schedule.warmup = "5%"
        config.duration = "100 epochs, at least 1_000 steps, at most 50_000 steps"
    config.log.every = "10 steps"
    return config
