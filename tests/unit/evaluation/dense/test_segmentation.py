"""Counts of pixels: equal to scikit-learn's, for any division of the data."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, jaccard_score

from tests.support.processes import on_eight_devices
from vit_jax.evaluation.base import HELD_OUT, Part
from vit_jax.evaluation.dense.segmentation import (
    IGNORED,
    PixelCounts,
    SegmentationEvaluator,
    SegmentedImages,
    count_pixels,
    mean_iou_of_images,
)
from vit_jax.evaluation.metrics import NO_ANSWER
from vit_jax.evaluation.runner import run_step

NAMES = ("ground", "cat", "dog", "cow", "sheep")
EVALUATOR = SegmentationEvaluator(
    lambda variables, batch: (jnp.sum(batch["mask"]) * 2.0, batch["predicted"]), NAMES
)


def pictures(count=6, classes=3):
    """True classes, some of them ignored, and predictions; two classes are in neither."""
    rng = np.random.default_rng(0)
    true, predicted = rng.integers(0, classes, (2, count, 4, 5))
    true[rng.random(true.shape) < 0.2] = IGNORED
    return true.astype(np.int32), predicted.astype(np.int32)


def evaluated(true, predicted, batch):
    """The result, with the pixels in batches of this size, the last of them padded."""
    missing = -len(true) % batch
    pad = [(0, missing), (0, 0), (0, 0)]
    whole = {
        "segmentation": np.pad(true, pad),
        "predicted": np.pad(predicted, pad),
        "mask": np.pad(np.ones(len(true), np.float32), (0, missing)),
    }

    def step(variables, batch):
        sums, rows = EVALUATOR.step(variables, batch)
        return sums, {**rows, "mask": batch["mask"]}

    batches = (
        {name: array[i : i + batch] for name, array in whole.items()}
        for i in range(0, len(whole["mask"]), batch)
    )
    part = run_step(jax.jit(step), {}, batches, None)
    return part, EVALUATOR.finish({HELD_OUT: part})


@pytest.mark.parametrize("batch", [6, 4])
def test_metrics_are_those_of_scikit_learn(batch):
    true, predicted = pictures()
    part, result = evaluated(true, predicted, batch)
    known = true != IGNORED
    t, p = true[known], predicted[known]
    expected = confusion_matrix(t, p, labels=range(5))
    np.testing.assert_array_equal(part.sums["confusion"][:, :-1], expected)
    assert part.sums["confusion"].dtype == np.int64
    assert part.sums["weight"] == known.sum()
    shares = jaccard_score(t, p, labels=[0, 1, 2], average=None)  # 3 and 4 are nowhere
    assert result.metrics["mean_iou"] == pytest.approx(shares.mean(), abs=1e-12)
    assert result.metrics["pixel_accuracy"] == pytest.approx((t == p).mean(), abs=1e-12)
    assert result.metrics["loss"] == pytest.approx(12 / known.sum())
    assert result.metrics["examples"] == 6
    rows = result.table.per_class()
    assert [row.iou for row in rows[:3]] == pytest.approx(list(shares))
    assert (rows[3].iou, rows[3].recall, rows[3].precision) == (None, None, None)
    assert dataclasses.asdict(rows[0])["pixels"] == (t == 0).sum()
    of_images = [
        jaccard_score(a[k], b[k], average=None).mean()
        for a, b, k in zip(true, predicted, known, strict=True)
    ]
    np.testing.assert_allclose(part.rows["iou"], of_images, rtol=1e-5)


def test_a_class_that_is_only_predicted_counts():
    counts = PixelCounts(np.array([[3, 1, 0], [0, 0, 0]]), ("ground", "cat"))
    assert counts.metrics()["mean_iou"] == pytest.approx((3 / 4 + 0) / 2)
    assert counts.per_class()[1].recall is None


def test_pixels_without_a_finite_prediction_are_wrong_and_counted():
    true, predicted = pictures()
    predicted[0] = NO_ANSWER
    _, result = evaluated(true, predicted, 6)
    assert result.metrics["nonfinite"] == 1
    known = true != IGNORED
    right = ((true == predicted) & known).sum() / known.sum()
    assert result.metrics["pixel_accuracy"] == pytest.approx(right)


def test_numbers_of_no_class_are_left_out_and_counted():
    true, predicted = pictures()
    true[0, 0, :2] = 7
    part, result = evaluated(true, predicted, 4)
    assert result.metrics["unknown_class_pixels"] == 2
    assert part.sums["weight"] == (true < 5).sum()


def test_an_image_without_counted_pixels_changes_nothing():
    true, predicted = pictures(1)
    empty = np.full_like(true, IGNORED)
    np.testing.assert_array_equal(mean_iou_of_images(count_pixels(empty, predicted, 5)), [1.0])
    part = Part(
        {"confusion": np.zeros((5, 6), int), "weight": 0, "unknown": 0, "loss": 0.0},
        {"finite": np.ones(1, bool)},
        1,
        None,
    )
    assert np.isnan(EVALUATOR.finish({HELD_OUT: part}).metrics["mean_iou"])


def test_counts_beyond_32_bits_are_exact():
    step = jax.jit(
        lambda variables, batch: (
            {"weight": jnp.sum(batch["mask"]), "many": jnp.full((2,), 2**31 - 1, jnp.int32)},
            {"mask": batch["mask"]},
        )
    )
    part = run_step(step, {}, [{"mask": np.ones(1, "f")}] * 3, None)
    np.testing.assert_array_equal(part.sums["many"], [3 * (2**31 - 1)] * 2)


def counts_on(numbers):
    """Counts of a batch divided over so many devices each; called in a process with eight."""
    true, predicted = pictures(8)
    batch = {"segmentation": true, "predicted": predicted, "mask": np.ones(8, np.float32)}
    found = []
    for number in numbers:
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:number]), ("data",))
        divided = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
        sums, _ = jax.jit(EVALUATOR.step)({}, jax.device_put(batch, divided))
        found.append(np.asarray(sums["confusion"]))
    return found


@pytest.mark.slow
def test_eight_devices_count_the_same():
    one, eight = on_eight_devices(counts_on, (1, 8))
    np.testing.assert_array_equal(one, eight)


def test_an_image_of_ignored_pixels_alone_is_no_best_one():
    true = np.array([[[0, 1]], [[IGNORED, IGNORED]]], np.int32)
    batch = {"segmentation": true, "image": np.zeros((2, 1, 2, 3)), "mask": np.ones(2)}
    answers = jnp.zeros((2, 1, 2), jnp.int32)
    sums, rows = SegmentedImages(lambda *_: (0.0, answers), NAMES, None).step({}, batch)
    rows = {name: np.asarray(row) for name, row in rows.items()}
    np.testing.assert_allclose(rows["iou"], [0.25, np.nan])
    evaluator = SegmentedImages(lambda *_: None, NAMES, None)
    assert evaluator.finish({HELD_OUT: Part(sums, rows, 2, None)}).metrics == {"examples": 2}
    ignored = {name: row[1:] for name, row in rows.items()}
    assert not evaluator.finish({HELD_OUT: Part(sums, ignored, 1, None)}).figures
