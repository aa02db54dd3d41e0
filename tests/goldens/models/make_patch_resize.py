"""Makes the golden file of patch kernels resized by a pseudo-inverse.

    python -m tests.goldens.models.make_patch_resize

needs torch and timm, which the tests do not. The file, `tests/goldens/models/patch_resize.npz`, has
for every pair of sizes, such as `4x4-8x6`, a kernel `kernel (height, width, channels, features)`,
and what it becomes: `paper`, by the definition of the paper (Beyer et al. 2023, section 3.4) in
float64, with the matrix of torch's bilinear interpolation of every unit image; and `timm` and
`timm-bilinear`, by timm's `resample_patch_embed` with its defaults, and as it loads Google's files.
Kernels are multiples of 1/64, which float16 holds exactly.
"""

from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import interpolate

from tests.goldens.models.make_golden import import_timm

SIZES = (
    ((4, 4), (8, 8)),
    ((8, 8), (4, 4)),
    ((16, 16), (14, 14)),
    ((16, 16), (8, 8)),
    ((6, 4), (3, 10)),
    ((5, 5), (1, 1)),
)


def main():
    import_timm()
    from timm.layers.patch_embed import resample_patch_embed

    arrays = {}
    for seed, (old, new) in enumerate(SIZES):
        drawn = np.random.default_rng(seed).normal(size=(*old, 2, 3))
        kernel = np.round(drawn * 64) / 64
        case = f"{old[0]}x{old[1]}-{new[0]}x{new[1]}"
        in_torch = torch.from_numpy(kernel.transpose(3, 2, 0, 1)).float()
        by_timm = {
            "timm": resample_patch_embed(in_torch, new),
            "timm-bilinear": resample_patch_embed(in_torch, new, "bilinear", antialias=False),
        }
        arrays[f"{case}/kernel"] = kernel.astype(np.float16)
        arrays[f"{case}/paper"] = by_definition(kernel, new).astype(np.float32)
        for name, resized in by_timm.items():
            arrays[f"{case}/{name}"] = resized.numpy().transpose(2, 3, 1, 0)
        difference = np.abs(arrays[f"{case}/paper"] - arrays[f"{case}/timm-bilinear"]).max()
        assert difference < 1e-5 * np.abs(arrays[f"{case}/paper"]).max(), (case, difference)
    np.savez_compressed(Path(__file__).with_name("patch_resize.npz"), **arrays)


def by_definition(kernel, new):
    """pinv(R^T) w, with a whole matrix R from all pixels to all pixels."""
    pixels = kernel.shape[0] * kernel.shape[1]
    images = torch.eye(pixels, dtype=torch.float64).reshape(pixels, 1, *kernel.shape[:2])
    resized = interpolate(images, size=new, mode="bilinear", align_corners=False)
    transposed = resized.reshape(pixels, -1).numpy()  # R^T
    return (np.linalg.pinv(transposed) @ kernel.reshape(pixels, -1)).reshape(*new, 2, 3)


if __name__ == "__main__":
    main()
