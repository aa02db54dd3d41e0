"""Early exits: who leaves where, and what that does to accuracy."""

import numpy as np
import pytest

from tests.support.clusters import clusters
from vit_jax.analysis.representations.early_exit import early_exits, leave
from vit_jax.analysis.representations.features import PIXELS, POOLED, Layers
from vit_jax.errors import UserError
from vit_jax.evaluation.linear_probe import linear_probe


def test_images_leave_at_the_first_sure_exit():
    sure = np.array([[0.9, 0.4, 0.6, 0.2], [0.1, 0.8, 0.7, 0.3], [0.5, 0.5, 0.5, 0.5]])
    right = np.array([[1, 0, 0, 0], [0, 1, 0, 1], [0, 0, 1, 1]])
    assert leave(sure, right, 0.75) == (0.75, 1.0, (1 + 2 + 3 + 3) / 4, (0.25, 0.25, 0.5))
    assert leave(sure, right, 0.55) == (0.55, 0.75, (1 + 2 + 1 + 3) / 4, (0.5, 0.25, 0.25))
    assert leave(sure, right, 0.0) == (0.0, 0.25, 1.0, (1.0, 0.0, 0.0))


def test_exits_are_linear_probes_of_the_blocks():
    train, test = clusters(80), clusters(40, seed=1)
    noise = np.random.default_rng(5)

    def layers(pooled):
        poor = noise.normal(size=(len(pooled.labels), 6))
        features = {PIXELS: poor, "blocks_0": poor, "blocks_1": poor, POOLED: pooled.features}
        return Layers(features, pooled.labels)

    of_train, of_test = layers(train), layers(test)
    found = early_exits(of_train, of_test, (0.0, 1.1))
    assert [one.layer for one in found.exits] == ["blocks_0", "blocks_1"]
    first = linear_probe(of_train.pooled("blocks_0"), of_test.pooled("blocks_0"))
    assert found.exits[0].accuracy == pytest.approx(first)
    assert found.exits[1].accuracy == 1.0
    all_leave, none_leaves = found.thresholds
    assert (all_leave.accuracy, all_leave.blocks) == (pytest.approx(first), 1.0)
    assert (none_leaves.accuracy, none_leaves.blocks) == (1.0, 2.0)
    with pytest.raises(UserError, match="no blocks"):
        early_exits(*(Layers({POOLED: x.features}, x.labels) for x in (train, test)))
