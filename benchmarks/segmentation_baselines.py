"""Baselines of segmentation without learning, on scenes: the ground alone, and the nearest scene.

    python -m benchmarks.segmentation_baselines

The first says "background" for every pixel; the second gives every test scene the mask of the
training scene whose pixels are nearest to its own.
"""

import numpy as np

from vit_jax.data import Source, open_source
from vit_jax.evaluation.dense.segmentation import PixelCounts

DATASET = "scenes:digits"


def images_and_masks(source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Return all images as rows of pixels from 0 to 1, and their masks."""
    examples = [source[index] for index in range(len(source))]
    pixels = np.stack([example["image"].reshape(-1) for example in examples])
    masks = np.stack([example["segmentation"] for example in examples])
    return pixels.astype(np.float32) / 255, masks


def nearest(train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Return the number of the nearest training row of each test row."""
    squares = np.square(train).sum(1)
    return np.argmin(squares - 2 * test @ train.T, axis=1)


def judged(true: np.ndarray, predicted: np.ndarray, names: tuple[str, ...]) -> dict[str, float]:
    """Return the metrics of predicted masks."""
    classes = len(names)
    known = true < classes
    places = true[known].astype(np.int64) * (classes + 1) + predicted[known]
    counts = np.bincount(places, minlength=classes * (classes + 1)).reshape(classes, classes + 1)
    return PixelCounts(counts, names).metrics()


def main() -> None:
    source = open_source(DATASET, "train")
    names = source.features["segmentation"].classes
    pixels, masks = images_and_masks(source)
    test_pixels, true = images_and_masks(open_source(DATASET, "test"))
    found = {
        "background alone": np.zeros_like(true),
        "nearest scene": masks[nearest(pixels, test_pixels)],
    }
    for name, predicted in found.items():
        metrics = judged(true, predicted, names)
        shown = ", ".join(f"{metric} {100 * value:.2f} %" for metric, value in metrics.items())
        print(f"{name}: {shown}")


if __name__ == "__main__":
    main()
