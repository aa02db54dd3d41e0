"""Makes the golden files of augmentation: what timm and torchvision make of the same images.

    python -m tests.goldens.data.make_golden

needs torch, torchvision and timm, which neither the package nor its tests need. It writes, beside
this script,

- `operations.npz`: two small images, and what timm's operations make of them at some arguments;
- `policies.json`: what timm takes a level to mean, and torchvision's tables of AutoAugment.

timm's operations stand in a file that needs only Pillow and numpy; it is loaded by its path.
"""

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from PIL import Image

from benchmarks.peers import import_torchvision

HERE = Path(__file__).parent
RESAMPLINGS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}

# Our operation: (timm's, the arguments).
GEOMETRY = {
    "shear_x": ("ShearX", [0.27, -0.12]),
    "shear_y": ("ShearY", [0.27, -0.12]),
    "translate_x": ("TranslateXRel", [0.405, -0.2]),
    "translate_y": ("TranslateYRel", [0.405, -0.2]),
    "rotate": ("Rotate", [27.0, -10.0]),
}
OTHERS = {
    "auto_contrast": ("AutoContrast", [None]),
    "equalize": ("Equalize", [None]),
    "invert": ("Invert", [None]),
    "posterize": ("Posterize", [1, 4, 7, 8]),
    "solarize": ("Solarize", [0, 26, 128, 256]),
    "solarize_add": ("SolarizeAdd", [0, 55, 110]),
    "color": ("Color", [0.1, 0.5, 1.9]),
    "contrast": ("Contrast", [0.1, 0.5, 1.9]),
    "brightness": ("Brightness", [0.1, 0.5, 1.9]),
    "sharpness": ("Sharpness", [0.1, 0.5, 1.9]),
    "grayscale": ("Desaturate", [None]),
    "gaussian_blur": ("GaussianBlur", [0.1, 0.7, 2.0]),
}

# Our table: timm's name of the operation there.
LEVELS = {
    "RAND": {
        "Posterize": "Posterize",
        "Solarize": "Solarize",
        "Color": "Color",
        "Contrast": "Contrast",
        "Brightness": "Brightness",
        "Sharpness": "Sharpness",
    },
    "RAND_INCREASING": {
        "Posterize": "PosterizeIncreasing",
        "Solarize": "SolarizeIncreasing",
        "Color": "ColorIncreasing",
        "Contrast": "ContrastIncreasing",
        "Brightness": "BrightnessIncreasing",
        "Sharpness": "SharpnessIncreasing",
    },
    "AUTO": {
        "Posterize": "PosterizeOriginal",
        "Solarize": "Solarize",
        "Color": "Color",
        "Contrast": "Contrast",
        "Brightness": "Brightness",
        "Sharpness": "Sharpness",
    },
}
SHIFTS = {"TranslateX": "TranslateXRel", "TranslateY": "TranslateYRel"}


def main():
    torchvision = import_torchvision()
    timm = load_timm_policies(Path(torchvision.__file__).parents[1])
    save_operations(timm)
    policies = {"levels": levels(timm), "operations": operations_of_rand_augment(timm)}
    policies["tables"] = tables(torchvision)
    (HERE / "policies.json").write_text(json.dumps(policies) + "\n")


def save_operations(timm):
    rgb = make_image()
    inputs = {"rgb": rgb, "grey": rgb[:, :, 1]}
    cases, arrays = [], dict(inputs)
    for mode, pixels in inputs.items():
        image = Image.fromarray(pixels)
        for table, resamplings in ((GEOMETRY, list(RESAMPLINGS)), (OTHERS, [None])):
            for ours, (theirs, arguments) in table.items():
                for argument in arguments:
                    for resampling in resamplings:
                        arrays[f"case_{len(cases)}"] = apply(
                            timm.NAME_TO_OP[theirs], image, theirs, argument, resampling
                        )
                        cases.append([mode, ours, argument, resampling])
    np.savez_compressed(HERE / "operations.npz", cases=json.dumps(cases), **arrays)


def apply(operation, image, name, argument, resampling):
    arguments = [] if argument is None else [argument]
    if name == "Desaturate":
        arguments = [1.0]  # of 0..1; 1 is grey
    fill = (128, 128, 128) if image.mode == "RGB" else 128
    options = {"fillcolor": fill, "resample": RESAMPLINGS[resampling]} if resampling else {}
    return np.asarray(operation(image, *arguments, **options))


def make_image():
    """13 x 11 pixels: smooth colours, hard edges and noise, from 9 to 230."""
    y, x = np.mgrid[:11, :13]
    red = 20 + 15 * x
    green = 40 + 14 * y + 3 * (x % 5)
    blue = np.where((x - 6) ** 2 + (y - 5) ** 2 < 12, 220, 30)
    pixels = np.stack([red, green, blue], axis=2)
    noise = np.random.default_rng(0).integers(-10, 11, pixels.shape)
    return np.clip(pixels + noise, 9, 230).astype(np.uint8)


def levels(timm):
    """Table of ours -> operation -> [level, argument with sign +1, with sign -1]."""
    found = {}
    for table, names in LEVELS.items():
        names = names | {name: name for name in ("Rotate", "ShearX", "ShearY")}
        if table != "AUTO":
            names = names | SHIFTS | {"SolarizeAdd": "SolarizeAdd"}
        found[table] = {
            ours: [
                [level / 2, *(argument(timm, theirs, level / 2, draw) for draw in (0.0, 1.0))]
                for level in range(21)
            ]
            for ours, theirs in names.items()
        }
    return found


def argument(timm, name, level, draw):
    """What timm makes of a level when its coin shows `draw`: 1 negates, where there is a sign."""
    timm.random = SimpleNamespace(random=lambda: draw)
    return timm.LEVEL_TO_ARG[name](level, {})[0]


def operations_of_rand_augment(timm):
    """timm's two lists of operations, in alphabetical order, without their variants' suffixes."""
    return {
        ours: sorted(
            name.removesuffix("Increasing").replace("XRel", "X").replace("YRel", "Y")
            for name in theirs
        )
        for ours, theirs in (
            ("RAND", timm.rand_augment_choices("", increasing=False)),
            ("RAND_INCREASING", timm.rand_augment_choices("", increasing=True)),
        )
    }


def tables(torchvision):
    policies = torchvision.transforms.AutoAugmentPolicy
    return {
        ours: torchvision.transforms.AutoAugment(theirs).policies
        for ours, theirs in (
            ("auto-cifar10", policies.CIFAR10),
            ("auto-imagenet", policies.IMAGENET),
        )
    }


def load_timm_policies(site_packages):
    spec = importlib.util.spec_from_file_location(
        "timm_policies", site_packages / "timm" / "data" / "auto_augment.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
