"""Figure of the README: attention of a trained ViT on digits of the test split.

    vit_jax train --config=digits --config.model.image_size=32 --workdir=runs/digits32
    python docs/images/attention_digits.py runs/digits32

The digits are scans of handwriting (8 x 8 pixels, from scikit-learn) from the test split. The model
has 8 x 8 patches, because the image size is twice that of the config, which has 4 x 4.
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import vit_jax
from vit_jax.analysis.attention.compute import compute_attention, over_image, relevance
from vit_jax.data import open_source

DIGITS = (0, 2, 3, 4, 6, 7, 8)  # the first test image of each


def draw(run: str, file: Path) -> None:
    """Draw images, attention of the first and last layer, and relevance, a row for each."""
    classifier = vit_jax.load(run)
    source = open_source("digits", "test")
    labels = list(source.labels)
    originals = [source[labels.index(digit)]["image"] for digit in DIGITS]
    pixels = np.stack([classifier.preprocessing(image) for image in originals])
    images = np.asarray(classifier.preprocessing.normalize(pixels))

    attention = compute_attention(classifier.model, classifier.variables, images)
    last = attention.layers[-1]
    token_relevance = relevance(classifier.model, classifier.variables, images)
    own_class = last.to_grid(token_relevance - np.eye(token_relevance.shape[-1], dtype=np.float32))
    maps = {
        "first layer": attention.class_map(0),
        "last layer": attention.class_map(-1),
        "relevance\nfor the class": own_class,
    }

    figure = Figure(figsize=(9, 5.4), layout="constrained")
    rows = figure.subplots(1 + len(maps), len(DIGITS))
    for panel in rows.ravel():
        panel.set(xticks=[], yticks=[], frame_on=False)
    rows[0, 0].set_ylabel("image", fontsize=14)
    for panel, image, [prediction] in zip(
        rows[0], pixels, classifier.predict(originals, top=1), strict=True
    ):
        panel.imshow(image[..., 0], cmap="gray")
        panel.set_title(f"{prediction.label}  {100 * prediction.probability:.0f} %", fontsize=14)
    for line, (title, values) in zip(rows[1:], maps.items(), strict=True):
        line[0].set_ylabel(title, fontsize=14)
        for panel, image, one in zip(
            line, pixels, over_image(values, last, pixels.shape[1:3]), strict=True
        ):
            panel.imshow(image[..., 0], cmap="gray")
            panel.imshow(one, cmap="inferno", alpha=0.65, vmin=0)
    figure.savefig(file, dpi=100)


if __name__ == "__main__":
    draw(sys.argv[1], Path(__file__).with_suffix(".png"))
