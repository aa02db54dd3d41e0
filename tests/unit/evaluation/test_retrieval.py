"""Recall of texts by images and of images by texts."""

from types import SimpleNamespace

import numpy as np

from vit_jax.evaluation.base import HELD_OUT, Part
from vit_jax.evaluation.retrieval import Retrieval, ranks_of

EYE = np.eye(4, dtype=np.float32)


def finish(images, texts, ids, names):
    source = SimpleNamespace(where=lambda index: names[index])
    rows = {"image": images, "text": texts, "ids": np.array(ids), "index": np.arange(len(ids))}
    part = Part({}, rows, len(ids), source)
    return Retrieval(task=None).finish({HELD_OUT: part}).metrics


def test_ranks_count_the_wrong_ones_that_are_nearer():
    # By hand: cosines of three images with three texts; the pairs are on the diagonal.
    cosines = np.array([[0.9, 0.1, 0.2], [0.5, 0.4, 0.6], [0.3, 0.3, 0.3]])
    images, texts = cosines, np.eye(3)
    of_images, of_texts = ranks_of(images, texts, np.arange(3), np.arange(3))
    assert of_images.tolist() == [0, 2, 2]  # equally near is nearer
    assert of_texts.tolist() == [0, 0, 1]


def test_a_vector_that_is_not_finite_finds_nothing_and_pushes_others_back():
    images = EYE[:3].copy()
    images[1] = np.nan
    of_images, of_texts = ranks_of(images, EYE[:3], np.arange(3), np.arange(3))
    assert of_images.tolist() == [0, 3, 0]
    assert of_texts.tolist() == [1, 3, 1]


def test_equal_captions_are_one_text_and_captions_of_a_file_belong_to_one_image():
    # Images 0 and 1 have the same caption; the third image, c, has two captions.
    images = np.stack([EYE[0], EYE[0], EYE[2], EYE[2]])
    texts = np.stack([EYE[0], EYE[0], EYE[2], EYE[3]])
    found = finish(images, texts, [[1, 2], [1, 2], [3, 4], [5, 6]], ["a", "b", "c", "c"])
    assert found["examples"] == 4
    assert found["image_to_text_recall_1"] == 1.0  # three images
    # Of three texts the last is as far from its image as from the others.
    assert found["text_to_image_recall_1"] == 2 / 3
    assert found["text_to_image_recall_5"] == 1.0


def test_recalls_are_those_of_sorting():
    rng = np.random.RandomState(0)
    images, texts = rng.randn(2, 40, 8).astype(np.float32)
    images, texts = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (images, texts))
    texts += 0.3 * images
    names = [str(number) for number in range(40)]
    found = finish(images, texts, [[number] for number in range(40)], sorted(names, key=int))
    for way, cosines in (("image_to_text", images @ texts.T), ("text_to_image", texts @ images.T)):
        order = np.argsort(-cosines, axis=1)
        for most in (1, 5, 10):
            expected = np.mean([row in order[row, :most] for row in range(40)])
            assert found[f"{way}_recall_{most}"] == expected
