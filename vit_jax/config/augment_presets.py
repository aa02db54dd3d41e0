"""Augmentation presets: each is a named set of `augment.*` values.

`light`, `medium` and `strong` follow the sequence of Steiner et al. (2021), "How to train your
ViT?": random resized crops and flips first, then RandAugment and MixUp at increasing levels. The
steps are this project's own, because their levels of RandAugment belong to another implementation;
`strong` is close to DeiT. `deit` and `deit3` are two papers' recipes for ImageNet-1k;
`docs/augmentation.md` lists the parts of them that are not augmentation.

All values are relative to the image's size, so that 32 and 384 pixels get the same change.
"""

from collections.abc import Mapping

Value = bool | int | float | str

# Keys of a preset; rotate, shift, scale, shear, pad_crop and flip_vertical depend on the data.
_OFF: dict[str, Value] = {
    "augment.random_resized_crop": 0.0,
    "augment.flip": 0.0,
    "augment.policy": "none",
    "augment.rand_n": 2,
    "augment.rand_m": 9.0,
    "augment.rand_std": 0.5,
    "augment.rand_increasing": True,
    "augment.color_jitter": 0.0,
    "augment.erase": 0.0,
    "augment.repeats": 1,
    "augment.mixup": 0.0,
    "augment.cutmix": 0.0,
    "augment.mix_probability": 1.0,
    "augment.cutmix_probability": 0.5,
}

PRESET_KEYS = tuple(_OFF)

PRESETS: Mapping[str, Mapping[str, Value]] = {
    "none": _OFF,
    "light": _OFF | {"augment.random_resized_crop": 0.5, "augment.flip": 0.5},
    "medium": _OFF
    | {
        "augment.random_resized_crop": 0.25,
        "augment.flip": 0.5,
        "augment.policy": "rand",
        "augment.rand_m": 6.0,
        "augment.mixup": 0.2,
    },
    "strong": _OFF
    | {
        "augment.random_resized_crop": 0.08,
        "augment.flip": 0.5,
        "augment.policy": "rand",
        "augment.rand_m": 9.0,
        "augment.mixup": 0.5,
    },
    # Touvron et al. (2021), "Training data-efficient image transformers", table 9. RandAugment
    # replaces colour jitter, as in their code.
    "deit": _OFF
    | {
        "augment.random_resized_crop": 0.08,
        "augment.flip": 0.5,
        "augment.policy": "rand",
        "augment.rand_n": 2,
        "augment.rand_m": 9.0,
        "augment.rand_std": 0.5,
        "augment.rand_increasing": True,
        "augment.erase": 0.25,
        "augment.repeats": 3,
        "augment.mixup": 0.8,
        "augment.cutmix": 1.0,
        "augment.mix_probability": 1.0,
        "augment.cutmix_probability": 0.5,
    },
    # Touvron et al. (2022), "DeiT III: Revenge of the ViT", the config for ImageNet-1k.
    "deit3": _OFF
    | {
        "augment.random_resized_crop": 0.08,
        "augment.flip": 0.5,
        "augment.policy": "three",
        "augment.color_jitter": 0.3,
        "augment.repeats": 3,
        "augment.mixup": 0.8,
        "augment.cutmix": 1.0,
        "augment.mix_probability": 1.0,
        "augment.cutmix_probability": 0.5,
    },
}
