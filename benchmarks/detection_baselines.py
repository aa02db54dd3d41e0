"""What detection on scenes reaches without learning: the same boxes for all, and the nearest scene.

    python -m benchmarks.detection_baselines [--dataset=scenes:digits] [--train=4000]

- `constant`: for every image the same boxes of the most frequent class, on a grid, with the mean
  size of all training boxes.
- `nearest`: the objects of the training scene whose pixels differ least, with the same score.
"""

import argparse

import numpy as np

from vit_jax.data.sources.registry import open_source
from vit_jax.evaluation.dense.detection import Boxes, average_precision


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="scenes:digits")
    parser.add_argument("--train", type=int, default=4000)
    parser.add_argument("--test", type=int, default=1000)
    asked = parser.parse_args()
    train = read(open_source(asked.dataset, "train"), asked.train)
    source = open_source(asked.dataset, "test")
    test = read(source, asked.test)
    truth = [Boxes(boxes, classes) for _, boxes, classes in test]
    for name, find in (("constant", constant), ("nearest", nearest)):
        metrics = average_precision(truth, find(train, test), len(source.class_names))
        print(f"{name:9s} AP {metrics['ap']:.4f}  AP50 {metrics['ap50']:.4f}")


def read(source, count):
    """Pixels, boxes and classes of the first scenes, without padding."""
    scenes = []
    for index in range(min(count, len(source))):
        example = source[index]
        boxes = example["boxes"]
        there = (boxes[:, 2:] > boxes[:, :2]).all(-1)
        scenes.append((example["image"], boxes[there], example["classes"][there]))
    return scenes


def constant(train, test):
    boxes = np.concatenate([boxes for _, boxes, _ in train])
    width, height = (boxes[:, 2:] - boxes[:, :2]).mean(0)
    label = np.bincount(np.concatenate([classes for *_, classes in train])).argmax()
    rows, columns = test[0][0].shape[:2]
    left, top = np.meshgrid(np.arange(0, columns, width), np.arange(0, rows, height))
    corners = np.stack([left.ravel(), top.ravel()], axis=1)
    grid = np.concatenate([corners, corners + np.array([width, height])], axis=1).astype(np.float32)
    found = Boxes(grid, np.full(len(grid), label), np.ones(len(grid)))
    return [found] * len(test)


def nearest(train, test):
    pixels = np.stack([image.ravel() for image, *_ in train]).astype(np.float32) / 255
    lengths = (pixels**2).sum(1)
    found = []
    for image, *_ in test:
        distances = lengths - 2 * pixels @ (image.ravel().astype(np.float32) / 255)
        _, boxes, classes = train[int(distances.argmin())]
        found.append(Boxes(boxes, classes, np.ones(len(classes))))
    return found


if __name__ == "__main__":
    main()
