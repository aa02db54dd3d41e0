"""Real scanned digits with a small MLP-Mixer: patches and two MLPs, no attention.

    python train.py --config=configs/family/mixer.py --workdir=runs/mixer

Reached by us: 98.89 %, with seed 0.
Cost: 72,314 parameters, 3.9 MMACs an image; a minute on two cores.
"""

from vit_jax.configs.common import digits


def get_config():
    config = digits.family("Mixer", "25 epochs", num_classes=10, image_size=16, in_channels=1)
    config.model.update(patch_size=2, width=48, depth=4, token_mlp_width=64, channel_mlp_width=96)
    config.optimizer.learning_rate = 3e-3
    return config
