"""Classical baseline on the embedded digits: a support vector machine on raw pixels.

    python -m benchmarks.digits_svm

An RBF kernel with scikit-learn's defaults (C=1, gamma="scale") and a small grid around them, both
chosen without the test set: the grid by five-fold cross-validation on the training split.
"""

import numpy as np
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC

from vit_jax.data import Source, open_source

GRID = {"C": [1, 3, 10], "gamma": ["scale", 0.5, 1.0, 2.0]}


def pixels_and_labels(source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Return all images as rows of 64 pixels from 0 to 1, and their labels."""
    examples = [source[index] for index in range(len(source))]
    pixels = np.stack([example["image"].reshape(-1) / 255 for example in examples])
    return pixels, np.array([example["label"] for example in examples])


def main() -> None:
    train = pixels_and_labels(open_source("digits", "train"))
    test_pixels, test_labels = pixels_and_labels(open_source("digits", "test"))
    defaults = SVC().fit(*train)
    tuned = GridSearchCV(SVC(), GRID, cv=5).fit(*train)
    for name, model in {"defaults": defaults, f"best of grid {tuned.best_params_}": tuned}.items():
        right = int((model.predict(test_pixels) == test_labels).sum())
        print(
            f"SVM, {name}: {right} of {len(test_labels)} correct = {right / len(test_labels):.2%}"
        )


if __name__ == "__main__":
    main()
