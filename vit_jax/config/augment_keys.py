"""Configuration keys of `augment`.

A key whose default is None takes its value from `augment.preset` (see `augment_presets.py`).
"""

from vit_jax.config.augment_presets import PRESETS
from vit_jax.config.key import Key
from vit_jax.config.values import Choice, Flag, Integer, Names, Number, Value


def _of_preset(path: str, meaning: str, allowed: Value) -> dict[str, Key]:
    """Return a key whose value comes from `augment.preset` if it is not set."""
    return {path: Key(None, meaning, allowed, optional=True)}


# docs/augmentation.md names the papers.
AUGMENT_KEYS: dict[str, Key] = {
    "augment.preset": Key(
        "none", "preset for the augment keys whose default is None", Choice(tuple(PRESETS))
    ),
    **_of_preset(
        "augment.random_resized_crop", "smallest share of a random crop; 0: none", Number(0, 1)
    ),
    "augment.scale_jitter": Key(
        0.0, "smallest factor of a random scale before a crop; 0: none", Number(0, 10)
    ),
    "augment.scale_jitter_max": Key(2.0, "largest factor of that scale", Number(0.01, 10)),
    "augment.class_share": Key(
        1.0, "largest share of one class of a mask in a crop; 1: any", Number(0.01, 1)
    ),
    "augment.mosaic": Key(0.0, "probability of an image made of four", Number(0, 1)),
    "augment.rotate": Key(0.0, "largest rotation, in degrees", Number(0, 180)),
    "augment.shift": Key(0.0, "largest shift, as a share of the image's side", Number(0, 1)),
    "augment.scale": Key(0.0, "largest change of size: 0.1 is from 1/1.1 to 1.1", Number(0, 1)),
    "augment.shear": Key(0.0, "largest shear, as horizontal per vertical pixels", Number(0, 1)),
    "augment.pad_crop": Key(0, "pixels of padding before a random crop", Integer(high=4096)),
    **_of_preset("augment.flip", "probability of a horizontal flip", Number(0, 1)),
    "augment.flip_vertical": Key(0.0, "probability of a vertical flip", Number(0, 1)),
    **_of_preset(
        "augment.policy",
        "rand: RandAugment; auto-...: AutoAugment; three: 3-Augment",
        Choice(("none", "rand", "auto-cifar10", "auto-imagenet", "three")),
    ),
    **_of_preset("augment.rand_n", "RandAugment: operations per image", Integer(1, high=100)),
    **_of_preset("augment.rand_m", "RandAugment: mean level of an operation", Number(0, 10)),
    **_of_preset("augment.rand_std", "RandAugment: deviation of the level", Number(0, 10)),
    **_of_preset(
        "augment.rand_increasing", "RandAugment: whether a higher level changes more", Flag()
    ),
    **_of_preset(
        "augment.color_jitter", "strength of brightness, contrast, saturation", Number(0, 1)
    ),
    **_of_preset("augment.erase", "probability of an erased rectangle", Number(0, 1)),
    "augment.transforms": Key(
        "", "registered transforms, applied last, in order; docs/augmentation.md", Names()
    ),
    **_of_preset(
        "augment.repeats", "augmented copies of each image in a batch", Integer(1, high=1024)
    ),
    **_of_preset("augment.mixup", "alpha of MixUp; 0: none", Number(0, 1000)),
    **_of_preset("augment.cutmix", "alpha of CutMix; 0: none", Number(0, 1000)),
    **_of_preset("augment.mix_probability", "probability that a batch is mixed", Number(0, 1)),
    **_of_preset(
        "augment.cutmix_probability", "probability of CutMix where both are on", Number(0, 1)
    ),
}
