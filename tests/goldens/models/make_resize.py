"""Makes the golden file of position tables resized by torch and SciPy.

    python -m tests.goldens.models.make_resize

needs torch and SciPy, which the tests do not. The file, `tests/goldens/models/position_resize.npz`,
has a table of one channel for every pair of grids, `7x7-5x9/table (7, 7)`, and what it becomes by
each kernel, `7x7-5x9/torch-bicubic (5, 9)`. Tables are multiples of 1/64, which float16 holds
exactly; the references compute in float64.
"""

from pathlib import Path

import numpy as np
import scipy.ndimage
import torch
from torch.nn.functional import interpolate

GRIDS = (
    ((7, 7), (5, 9)),
    ((14, 14), (7, 7)),
    ((14, 14), (24, 24)),
    ((2, 8), (4, 4)),
    ((14, 14), (14, 14)),
    ((14, 14), (14, 20)),
    ((37, 37), (16, 16)),
    ((3, 3), (1, 2)),
    ((1, 2), (3, 3)),
)

# Our name: arguments of torch's interpolate, besides the size.
IN_TORCH = {
    "cubic": {"mode": "bicubic", "antialias": True},
    "bilinear": {"mode": "bilinear", "antialias": True},
    "torch-bicubic-antialias": {"mode": "bicubic", "antialias": True},
    "torch-bicubic": {"mode": "bicubic"},
    "torch-bilinear": {"mode": "bilinear"},
    "corner-bicubic": {"mode": "bicubic", "align_corners": True},
    "torch-nearest": {"mode": "nearest"},
}


def main():
    arrays = {}
    for seed, (source, target) in enumerate(GRIDS):
        drawn = np.random.default_rng(seed).normal(size=source)
        table = np.round(drawn * 64) / 64
        case = f"{source[0]}x{source[1]}-{target[0]}x{target[1]}"
        arrays[f"{case}/table"] = table.astype(np.float16)
        for kernel, resized in resized_by_all(table, target).items():
            assert resized.shape == target, (case, kernel, resized.shape)
            arrays[f"{case}/{kernel}"] = resized.astype(np.float32)
    path = Path(__file__).with_name("position_resize.npz")
    np.savez_compressed(path, **arrays)


def resized_by_all(table, target):
    image = torch.from_numpy(table)[None, None]
    resized = {
        kernel: interpolate(image, size=target, **arguments)[0, 0].numpy()
        for kernel, arguments in IN_TORCH.items()
    }
    zoom = [new / old for new, old in zip(target, table.shape, strict=True)]
    resized["corner-bilinear"] = scipy.ndimage.zoom(table, zoom, order=1)
    resized["dinov2-bicubic"] = in_dinov2(image, table.shape, target)
    return resized


def in_dinov2(image, source, target):
    """The call of DINO's and DINOv2's repositories, which leave a table of the same size alone."""
    if source == target:
        return image[0, 0].numpy()
    scale = [(new + 0.1) / old for new, old in zip(target, source, strict=True)]
    return interpolate(image, scale_factor=scale, mode="bicubic")[0, 0].numpy()


if __name__ == "__main__":
    main()
