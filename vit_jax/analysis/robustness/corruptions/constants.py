"""Constants of each corruption at each severity, of ImageNet-C and of CIFAR-10-C.

They are those of `make_imagenet_c.py` of Hendrycks and Dietterich (2019), "Benchmarking Neural
Network Robustness to Common Corruptions and Perturbations", and for elastic transform those of
`imagecorruptions` 1.1.2; those of CIFAR-10-C are of their `make_cifar_c.py`. Lengths are in pixels
of images of 224 x 224, and of 32 x 32; they do not shrink with a smaller image. There is one
column per severity, from 1 to 5; names are arguments of the functions.
"""

from typing import Any

from PIL import Image

IMAGENET_C: dict[str, dict[str, tuple[Any, ...]]] = {
    "gaussian_noise": {"scale": (0.08, 0.12, 0.18, 0.26, 0.38)},
    "shot_noise": {"photons": (60, 25, 12, 5, 3)},
    "impulse_noise": {"amount": (0.03, 0.06, 0.09, 0.17, 0.27)},
    "defocus_blur": {"radius": (3, 4, 6, 8, 10), "alias_blur": (0.1, 0.5, 0.5, 0.5, 0.5)},
    "glass_blur": {
        "sigma": (0.7, 0.9, 1.0, 1.1, 1.5),
        "reach": (1, 2, 2, 3, 4),
        "rounds": (2, 1, 3, 2, 2),
    },
    "motion_blur": {"radius": (10, 15, 15, 15, 20), "sigma": (3, 5, 8, 12, 15)},
    "zoom_blur": {"most": (1.11, 1.16, 1.21, 1.26, 1.31), "step": (0.01, 0.01, 0.02, 0.02, 0.03)},
    "snow": {
        "mean": (0.1, 0.2, 0.55, 0.55, 0.55),
        "scale": (0.3, 0.3, 0.3, 0.3, 0.3),
        "zoom": (3, 2, 4, 4.5, 2.5),
        "threshold": (0.5, 0.5, 0.9, 0.85, 0.85),
        "radius": (10, 12, 12, 12, 12),
        "sigma": (4, 4, 8, 8, 12),
        "kept": (0.8, 0.7, 0.7, 0.65, 0.55),
    },
    "frost": {"kept": (1, 0.8, 0.7, 0.65, 0.6), "added": (0.4, 0.6, 0.7, 0.7, 0.75)},
    "fog": {"amount": (1.5, 2.0, 2.5, 2.5, 3.0), "decay": (2, 2, 1.7, 1.5, 1.4)},
    "brightness": {"added": (0.1, 0.2, 0.3, 0.4, 0.5)},
    "contrast": {"factor": (0.4, 0.3, 0.2, 0.1, 0.05)},
    "elastic_transform": {"alpha": tuple(250 * a for a in (0.05, 0.065, 0.085, 0.1, 0.12))},
    "pixelate": {"share": (0.6, 0.5, 0.4, 0.3, 0.25)},
    "jpeg_compression": {"quality": (25, 18, 15, 10, 7)},
}

CIFAR_10_C: dict[str, dict[str, tuple[Any, ...]]] = {
    "gaussian_noise": {"scale": (0.04, 0.06, 0.08, 0.09, 0.10)},
    "shot_noise": {"photons": (500, 250, 100, 75, 50)},
    "impulse_noise": {"amount": (0.01, 0.02, 0.03, 0.05, 0.07)},
    "defocus_blur": {"radius": (0.3, 0.4, 0.5, 1, 1.5), "alias_blur": (0.4, 0.5, 0.6, 0.2, 0.1)},
    "glass_blur": {
        "sigma": (0.05, 0.25, 0.4, 0.25, 0.4),
        "reach": (1, 1, 1, 1, 1),
        "rounds": (1, 1, 1, 2, 2),
    },
    "motion_blur": {"radius": (6, 6, 6, 8, 9), "sigma": (1, 1.5, 2, 2, 2.5)},
    "zoom_blur": {"most": (1.06, 1.11, 1.16, 1.21, 1.26), "step": (0.01,) * 5},
    "snow": {
        "mean": (0.1, 0.1, 0.15, 0.25, 0.3),
        "scale": (0.2, 0.2, 0.3, 0.3, 0.3),
        "zoom": (1, 1, 1.75, 2.25, 1.25),
        "threshold": (0.6, 0.5, 0.55, 0.6, 0.65),
        "radius": (8, 10, 10, 12, 14),
        "sigma": (3, 4, 4, 6, 12),
        "kept": (0.95, 0.9, 0.9, 0.85, 0.8),
    },
    "frost": {
        "kept": (1, 1, 0.9, 0.85, 0.75),
        "added": (0.2, 0.3, 0.4, 0.4, 0.45),
        "shrunk": (0.2,) * 5,
    },
    "fog": {"amount": (0.2, 0.5, 0.75, 1, 1.5), "decay": (3, 3, 2.5, 2, 1.75)},
    "brightness": {"added": (0.05, 0.1, 0.15, 0.2, 0.3)},
    "contrast": {"factor": (0.75, 0.5, 0.4, 0.3, 0.15)},
    "elastic_transform": {
        "alpha": tuple(32 * a for a in (0, 0.05, 0.08, 0.1, 0.1)),
        "sigma": tuple(32 * a for a in (0, 0.2, 0.06, 0.04, 0.03)),
        "corners": tuple(32 * a for a in (0.08, 0.07, 0.06, 0.05, 0.03)),
    },
    "pixelate": {
        "share": (0.95, 0.9, 0.85, 0.75, 0.65),
        "enlarged_by": (Image.Resampling.BOX,) * 5,
    },
    "jpeg_compression": {"quality": (80, 65, 58, 50, 40)},
}

CONSTANTS = {"imagenet": IMAGENET_C, "cifar": CIFAR_10_C}
