"""The task of depth: its sums on any parts of a batch, and its errors."""

import dataclasses

import jax
import numpy as np
import pytest

from tests.support.architectures import DENSE, TINY
from tests.support.shapes import random_images, random_variables
from vit_jax.tasks.depth.task import Depth

IMAGES = random_images(4, 16, 16, 3)
TASK = Depth(DENSE["DPT"].clone(max_depth=10))


def depths():
    depth = np.random.default_rng(0).uniform(1, 9, (4, 16, 16)).astype(np.float32)
    depth[:, :3] = 0
    depth[2] = 0
    return depth


def test_losses_of_parts_add_up_and_what_has_no_depth_has_no_weight():
    batch = {"image": IMAGES, "depth": depths(), "mask": np.array([1.0, 0, 1, 1], np.float32)}
    variables = random_variables(TASK.model, IMAGES)

    @jax.jit
    def sums(batch):
        loss = TASK.loss(variables, batch, jax.random.key(0), train=True)
        return loss.total, loss.weight

    total, weight = sums(batch)
    parts = [sums({name: x[i : i + 2] for name, x in batch.items()}) for i in (0, 2)]
    assert float(weight) == 2 == sum(float(w) for _, w in parts)
    np.testing.assert_allclose(total, sum(float(t) for t, _ in parts), rtol=1e-5)


def test_predictions_are_aligned_as_the_loss_asks():
    assert TASK.judged_alignment == "none"
    affine = dataclasses.replace(TASK, kind="affine")
    assert affine.judged_alignment == "disparity"
    assert dataclasses.replace(affine, alignment="median").judged_alignment == "median"
    [evaluator] = affine.evaluators()
    assert evaluator.alignment == "disparity"


def test_depths_of_another_size_are_told():
    with pytest.raises(ValueError, match="depths must have the size of the images"):
        TASK.of_predictions(np.ones((4, 16, 16)), {"depth": np.ones((4, 8, 8))})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": TINY["ViT"]}, "ViT gives classes; use one such as"),
        (
            {"model": DENSE["DPT"]},
            "'silog' is the loss of depths, and this DPT gives inverse depths",
        ),
        ({"kind": "l2"}, "kind = 'l2' must be one of silog, affine"),
        ({"alignment": "scale"}, "must be one of auto, none, median, disparity"),
        ({"crop": "nyu"}, "must be one of none, eigen, garg"),
        ({"affine_trim": 1.5}, "must be a number from 0 to 1"),
        ({"silog_factor": -1.0}, "must be 0 or more"),
        ({"max_depth": 1e-4}, "must be above min_depth"),
    ],
)
def test_wrong_fields_are_one_sentence(fields, said):
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(TASK, **fields)
