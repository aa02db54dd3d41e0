"""Metrics of depth: hand arithmetic, another program of them, and a real scene with its truth."""

import importlib.util
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

from vit_jax.data import Preprocessing
from vit_jax.evaluation.base import HELD_OUT, Part
from vit_jax.evaluation.dense.depth import (
    CROPS,
    DepthEvaluator,
    DepthImages,
    depth_errors,
    known_depth,
    least_squares,
    masked_median,
)
from vit_jax.tasks.base import Loss
from vit_jax.tasks.depth.losses import affine_losses

judge = jax.jit(depth_errors, static_argnames=("alignment", "max_depth", "crop"))


def reference(predicted, truth, least=1e-3, most=None, alignment="none"):
    """The metrics of one image in float64 by the formulas of the papers, and of known pixels."""
    known = np.isfinite(truth) & (truth >= least) & (truth <= (most or np.inf))
    d, t = predicted[known].astype(np.float64), truth[known].astype(np.float64)
    if alignment == "median":
        d = d * np.percentile(t, 50, method="lower") / np.percentile(d, 50, method="lower")
    elif alignment == "disparity":
        (factor, shift), *_ = np.linalg.lstsq(np.stack([d, np.ones_like(d)], 1), 1 / t)
        d = 1 / np.maximum(factor * d + shift, 1 / most if most else 1e-8)
    d = np.clip(d, least, most or None)
    ratio, log = np.maximum(d / t, t / d), np.log(d) - np.log(t)
    return {
        "abs_rel": np.mean(np.abs(d - t) / t),
        "sq_rel": np.mean((d - t) ** 2 / t),
        "rmse": np.sqrt(np.mean((d - t) ** 2)),
        "rmse_log": np.sqrt(np.mean(log**2)),
        "log10": np.mean(np.abs(np.log10(d) - np.log10(t))),
        "silog": 100 * np.std(log),
        "delta1": np.mean(ratio < 1.25),
        "delta2": np.mean(ratio < 1.25**2),
        "delta3": np.mean(ratio < 1.25**3),
    }


def assert_is_reference(predicted, truth, **asked):
    found = {k: np.asarray(v) for k, v in judge(predicted, truth, **asked).items()}
    for i in range(len(truth)):
        expected = reference(
            predicted[i],
            truth[i],
            most=asked.get("max_depth"),
            alignment=asked.get("alignment", "none"),
        )
        for name, value in expected.items():
            assert found[name][i] == pytest.approx(value, rel=2e-4, abs=2e-6), (i, name)


def test_metrics_by_hand():
    """Two known pixels: 2 m seen as 3 m, and 4 m seen as 2 m."""
    truth = np.array([[[2.0, 4.0], [0.0, np.nan]]], np.float32)
    predicted = np.array([[[3.0, 2.0], [7.0, 7.0]]], np.float32)
    found = {name: float(value[0]) for name, value in judge(predicted, truth).items()}
    logs = np.log(1.5), np.log(0.5)
    expected = {
        "abs_rel": (0.5 + 0.5) / 2,
        "sq_rel": (0.5 + 1.0) / 2,
        "rmse": np.sqrt((1 + 4) / 2),
        "rmse_log": np.sqrt((logs[0] ** 2 + logs[1] ** 2) / 2),
        "log10": (np.log10(1.5) + np.log10(2)) / 2,
        "silog": 100 * (logs[0] - logs[1]) / 2,
        "delta1": 0.0,
        "delta2": 0.5,  # 1.5 < 1.5625
        "delta3": 0.5,  # 2 > 1.953
        "pixels": 2,
    }
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("alignment", ["none", "median", "disparity"])
@pytest.mark.parametrize("most", [0.0, 6.0])
def test_metrics_are_those_of_another_program(alignment, most):
    rng = np.random.default_rng(0)
    truth = rng.uniform(0.5, 8, (3, 9, 11)).astype(np.float32)
    truth[rng.uniform(size=truth.shape) < 0.3] = 0
    seen = truth * np.exp(0.3 * rng.normal(size=truth.shape)) + 0.1
    if alignment == "disparity":
        seen = 3 / seen + 0.5
    assert_is_reference(seen.astype(np.float32), truth, alignment=alignment, max_depth=most)


def test_unknown_depths_and_wrong_predictions():
    truth = np.array([[[0.0, 0.0]], [[1.0, 0.0]], [[-1.0, np.inf]]], np.float32)
    predicted = np.array([[[1.0, 1.0]], [[np.nan, np.nan]], [[1.0, 1.0]]], np.float32)
    found = judge(predicted, truth)
    np.testing.assert_array_equal(found["pixels"], [0, 1, 0])
    np.testing.assert_allclose(found["abs_rel"], [0, 0.999, 0], rtol=1e-6)
    np.testing.assert_array_equal(found["delta3"], [0, 0, 0])


def test_alignment_by_least_squares_undoes_a_factor_and_a_shift():
    rng = np.random.default_rng(1)
    truth = rng.uniform(1, 5, (2, 6, 6)).astype(np.float32)
    known = truth > 2
    factor, shift = least_squares(4 / truth - 3, 1 / truth, known)
    np.testing.assert_allclose(factor, 0.25, rtol=1e-4)
    np.testing.assert_allclose(shift, 0.75, rtol=1e-4)
    factor, shift = least_squares(np.full_like(truth, 7.0), 1 / truth, known)
    np.testing.assert_array_equal(factor, 0)
    np.testing.assert_allclose(
        shift, [np.mean(1 / t[k]) for t, k in zip(truth, known, strict=True)], rtol=1e-5
    )


def test_the_median_is_the_lower_one_of_the_known():
    x = np.array([[[4.0, 1.0, 9.0, 2.0]], [[3.0, 1.0, 2.0, 0.0]], [[1.0, 1.0, 1.0, 1.0]]])
    known = np.array([[[1, 1, 1, 1]], [[1, 1, 1, 0]], [[0, 0, 0, 0]]], bool)
    np.testing.assert_array_equal(masked_median(x, known), [2, 2, 0])


def test_crops_are_those_of_the_original_sizes():
    assert set(CROPS) == {"none", "eigen", "garg"}
    nyu = np.asarray(known_depth(np.ones((1, 480, 640), np.float32), crop="eigen"))[0]
    expected = np.zeros((480, 640), bool)
    expected[45:471, 41:601] = True
    np.testing.assert_array_equal(nyu, expected)
    kitti = np.asarray(known_depth(np.ones((1, 375, 1242), np.float32), crop="garg"))[0]
    rows, columns = np.flatnonzero(kitti.any(1)), np.flatnonzero(kitti.any(0))
    assert (rows[0], rows[-1] + 1, columns[0], columns[-1] + 1) == (153, 371, 44, 1197)


def test_the_evaluator_leaves_out_padding_and_counts_what_has_no_depth():
    truth = np.array([[[2.0]], [[0.0]], [[4.0]], [[1.0]]], np.float32)
    predicted = np.array([[[3.0]], [[1.0]], [[np.nan]], [[9.0]]], np.float32)
    batch = {"depth": truth, "mask": np.array([1.0, 1.0, 1.0, 0.0], np.float32)}
    evaluator = DepthEvaluator(lambda *_: (Loss(6.0, 2.0, {}, {}), predicted))
    sums, rows = evaluator.step({}, batch)
    sums = {name: float(total) for name, total in sums.items()}
    rows = {name: np.asarray(row)[:3] for name, row in rows.items()}
    metrics = evaluator.finish({HELD_OUT: Part(sums, rows, 3, None)}).metrics
    assert metrics["abs_rel"] == pytest.approx((0.5 + (4 - 1e-3) / 4) / 2)
    assert (metrics["loss"], metrics["examples"]) == (3.0, 3)
    assert (metrics["without_depth"], metrics["nonfinite"]) == (1, 1)


def test_the_figure_has_the_best_and_the_worst_images_and_their_errors():
    truth = np.full((7, 4, 4), 2.0, np.float32)
    truth[:, 0] = truth[6] = 0
    predicted = truth + np.arange(7, dtype=np.float32)[:, None, None] / 4
    batch = {"depth": truth, "image": np.zeros((7, 4, 4, 3), np.float32), "mask": np.ones(7)}
    found = (Loss(0.0, 1.0, {}, {}), predicted)
    evaluator = DepthImages(lambda *_: found, Preprocessing((4, 4)))
    sums, rows = evaluator.step({}, batch)
    rows = {name: np.asarray(row) for name, row in rows.items()}
    # An image without a known depth is judged by nothing, and is no best one.
    np.testing.assert_allclose(rows["error"], [*np.arange(6) / 8, np.nan], atol=1e-6)
    result = evaluator.finish({HELD_OUT: Part(sums, rows, 7, None)})
    assert result.metrics == {"examples": 7}
    unknown = {name: row[6:] for name, row in rows.items()}
    assert not evaluator.finish({HELD_OUT: Part(sums, unknown, 1, None)}).figures
    figure = result.figures["depths"]()
    assert "0.000 0.125 0.250 0.375 0.500 0.625" in figure.get_suptitle()
    panels = np.array(figure.axes).reshape(4, 6)
    assert [row[0].get_ylabel() for row in panels] == ["image", "true", "predicted", "error"]
    shown = np.asarray(panels[3, 5].images[0].get_array())
    assert (shown[0] == 0).all() and (shown[1:] == 1).all()


# ------------------------------------------------------------------- a real scene with its truth


def middlebury():
    """The left and the right picture of a motorcycle in grey, and the measured disparity.

    Scharstein et al. 2014, "High-Resolution Stereo Datasets with Subpixel-Accurate Ground Truth";
    500 x 741 pixels, in the package scikit-image, whose files are read without importing it.
    """
    found = importlib.util.find_spec("skimage")
    if found is None:
        pytest.skip("scikit-image, which has the picture, is not installed")
    folder = Path(found.origin).parent / "data"
    grey = [
        Image.open(folder / f"motorcycle_{side}.png").convert("L") for side in ("left", "right")
    ]
    with np.load(folder / "motorcycle_disp.npz") as file:
        disparity = file["arr_0"].astype(np.float32)
    left, right = (np.asarray(picture, np.float32) for picture in grey)
    return left, right, disparity


def matched(left, right, most=80, side=9):
    """The disparity that block matching finds: of the nearest windows of both pictures."""
    costs = []
    for shift in range(most):
        cost = np.abs(left[:, shift:] - right[:, : right.shape[1] - shift])
        cost = np.pad(cost, ((0, 0), (shift, 0)), constant_values=255)
        for axis in (0, 1):
            total = np.cumsum(
                np.pad(cost, [(side, 0) if a == axis else (0, 0) for a in (0, 1)]), axis
            )
            cost = np.take(total, range(side, total.shape[axis]), axis)
            cost = cost - np.take(total, range(total.shape[axis] - side), axis)
            cost = np.roll(cost, -(side // 2), axis)
        costs.append(cost)
    return np.argmin(costs, axis=0).astype(np.float32)


@pytest.mark.slow
def test_on_a_real_scene_metrics_are_those_of_another_program():
    """Depth is 1000 / disparity; what was not measured is infinite in the file."""
    left, right, disparity = middlebury()
    truth = np.where(np.isfinite(disparity), 1000 / disparity, 0)[None]
    assert 0.7 < (truth > 0).mean() < 1
    found = matched(left, right)[None]
    scaled = (0.3 * disparity + 5)[None]
    assert_is_reference(1000 / np.maximum(found, 1), truth)
    assert_is_reference(found, truth, alignment="disparity", max_depth=200.0)
    exact = judge(scaled, truth, alignment="disparity")
    stereo = judge(1000 / np.maximum(found, 1), truth)
    middle = judge(np.full_like(truth, np.median(truth[truth > 0])), truth)
    assert affine_losses(scaled, truth, known_depth(truth)) == pytest.approx(0, abs=1e-3)
    assert (exact["abs_rel"] < 1e-4).all() and (exact["delta1"] == 1).all()
    assert (stereo["delta1"] > middle["delta1"] + 0.3).all()
