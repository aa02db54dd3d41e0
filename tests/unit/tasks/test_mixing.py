"""MixUp and CutMix: exact shares, any batch size, the stored rows and boxes."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.folders import GOLDENS
from vit_jax.data.sampler import RepeatedSampler, ShuffledSampler
from vit_jax.tasks.mixing import Mixing, box_mask, cutmix, mix_targets, mixup, random_box

TARGETS = json.loads((GOLDENS / "training/targets.json").read_text())


def make_images(count, height=8, width=8):
    """Images that are all of one number, their place in the batch."""
    return jnp.broadcast_to(
        jnp.arange(count, dtype=float)[:, None, None, None], (count, height, width, 1)
    )


@pytest.mark.parametrize("box", TARGETS["cutmix_boxes"])
def test_the_label_weighs_what_was_pasted(box):
    mask = box_mask(box["H"], box["W"], (box["y0"], box["y1"]), (box["x0"], box["x1"]))
    mixed, own = cutmix(make_images(2, box["H"], box["W"]), mask)
    assert int(mask.sum()) == box["pasted_pixels"]
    assert 1 - float(own) == pytest.approx(box["weight_of_pasted"], abs=1e-6)
    # The first image has the last one's pixels (1) in the box, and its own (0) elsewhere.
    assert float(mixed[0].sum()) == box["pasted_pixels"]


@pytest.mark.parametrize(
    ("row", "own", "other", "weight", "smoothing"),
    [
        ("mixup_K4_lam0p3_a1_b3_eps0p1", 1, 3, 0.3, 0.1),
        ("mixup_same_class_K4_a2_b2", 2, 2, 0.3, 0.1),
    ],
)
def test_mixed_targets_are_the_stored_rows(row, own, other, weight, smoothing):
    targets = jax.nn.one_hot(jnp.array([own, other]), 4)
    mixed = optax.smooth_labels(mix_targets(targets, weight), smoothing)
    np.testing.assert_allclose(mixed[0], TARGETS[row], atol=1e-6)
    np.testing.assert_allclose(mixed.sum(-1), 1, atol=1e-6)


def test_a_weight_of_one_changes_no_bit():
    images = jax.random.normal(jax.random.key(0), (3, 5, 4, 2))
    mixed, own = mixup(images, 1.0)
    np.testing.assert_array_equal(mixed, images)
    pasted, share = cutmix(images, random_box(5, 4, jnp.float32(1), jax.random.key(1)))
    np.testing.assert_array_equal(pasted, images)
    assert (float(own), float(share)) == (1, 1)


# Each is a program of its own, so every number of images and every kind is there once.
@pytest.mark.parametrize(
    ("count", "options"),
    [(1, {"mixup": 0.2, "cutmix": 0.7}), (3, {"cutmix": 1.0}), (7, {"mixup": 0.8})],
)
def test_any_batch_size_is_mixed_and_the_share_is_exact(count, options):
    mixing = jax.jit(Mixing(**options).__call__)
    for seed in range(10):
        images = make_images(count)
        mixed, own = mixing(images, jax.random.key(seed))
        assert mixed.shape == images.shape and 0 <= float(own) <= 1
        # The mean of an image is the mean of the two numbers, weighed by their shares.
        partner = (np.arange(count) - count // 2) % count
        expected = float(own) * np.arange(count) + (1 - float(own)) * partner
        np.testing.assert_allclose(mixed.mean((1, 2, 3)), expected, atol=1e-5)


@pytest.mark.parametrize("count", [2, 3, 6, 7])
def test_no_image_of_a_batch_is_mixed_with_itself(count):
    mixed, _ = mixup(make_images(count), 0.5)
    assert np.all(np.asarray(mixed[:, 0, 0, 0]) != np.arange(count))


@pytest.mark.parametrize("repeats", [2, 3, 4])
def test_no_image_is_mixed_with_a_copy_of_itself(repeats):
    """Repeated augmentation puts the copies of an image next to each other."""
    order = RepeatedSampler(ShuffledSampler(examples=100, seed=0), repeats)
    shown = jnp.array([order[position].example for position in range(24)], jnp.float32)
    mixed, _ = mixup(shown[:, None, None, None], 0.5)
    assert np.all(np.asarray(mixed[:, 0, 0, 0]) != np.asarray(shown))


def test_the_area_of_a_box_away_from_the_edges_is_what_the_weight_leaves():
    areas = [
        float(random_box(100, 60, jnp.float32(0.91), jax.random.key(seed)).sum())
        for seed in range(200)
    ]
    assert max(areas) == 30 * 18  # a side of sqrt(1 - 0.91) = 0.3
    assert min(areas) < 30 * 18  # some hang over the edge


def test_probability_and_switch_are_kept_in_the_long_run():
    mixing = jax.jit(Mixing(mixup=1.0, cutmix=1.0, probability=0.5, switch=0.2).__call__)
    kinds = []
    for seed in range(300):
        mixed, own = mixing(make_images(2, 16, 16), jax.random.key(seed))
        levels = np.unique(mixed[1])
        whole = float(own) == 1
        kinds.append("none" if whole else "cutmix" if set(levels) <= {0.0, 1.0} else "mixup")
    share = {kind: kinds.count(kind) / 300 for kind in ("none", "mixup", "cutmix")}
    # Three standard deviations of 300 draws are 0.09; some boxes are empty or whole.
    assert share["none"] == pytest.approx(0.5, abs=0.1)
    assert share["mixup"] == pytest.approx(0.4, abs=0.1)
    assert share["cutmix"] == pytest.approx(0.1, abs=0.06)


def test_nothing_switched_on_changes_nothing():
    images = make_images(3)
    for mixing in (Mixing(), Mixing(mixup=1.0, probability=0.0)):
        mixed, own = mixing(images, jax.random.key(0))
        assert mixed is images and float(own) == 1 and not mixing.on
