"""Baselines of depth without learning, on scenes: the usual depth, and the nearest scene.

    python -m benchmarks.depth_baselines

The first gives every test scene the median depth of each pixel in the training scenes, or one
median for all pixels; the second gives it the depth of the training scene whose pixels are nearest.
"""

import numpy as np

from vit_jax.data import Source, open_source
from vit_jax.evaluation.dense.depth import depth_errors

DATASET = "scenes:digits"
SHOWN = ("abs_rel", "rmse", "delta1", "delta2", "delta3")


def images_and_depths(source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Return all images as rows of pixels from 0 to 1, and their depths."""
    examples = [source[index] for index in range(len(source))]
    pixels = np.stack([example["image"].reshape(-1) for example in examples])
    return pixels.astype(np.float32) / 255, np.stack([example["depth"] for example in examples])


def nearest(train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Return the number of the nearest training row of each test row."""
    squares = np.square(train).sum(1)
    return np.argmin(squares - 2 * test @ train.T, axis=1)


def main() -> None:
    pixels, depths = images_and_depths(open_source(DATASET, "train"))
    test_pixels, truth = images_and_depths(open_source(DATASET, "test"))
    found = {
        "one depth, the median": np.full_like(truth, np.median(depths)),
        "the median of each pixel": np.broadcast_to(np.median(depths, axis=0), truth.shape),
        "nearest scene": depths[nearest(pixels, test_pixels)],
    }
    for name, predicted in found.items():
        errors = depth_errors(predicted, truth)
        print(name, {metric: round(float(errors[metric].mean()), 4) for metric in SHOWN})


if __name__ == "__main__":
    main()
