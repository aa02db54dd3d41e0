"""The parameter trees of all registered models are the committed ones."""

import pytest

from tests.goldens import trees
from vit_jax.models import list_models


def test_every_registered_model_has_a_committed_tree():
    assert list(trees.read()["digests"]) == list_models()


@pytest.mark.parametrize("name", trees.smallest_models())
def test_the_smallest_model_of_each_architecture_has_its_tree(name):
    found = trees.leaves(name)
    assert trees.listing(found) == trees.read()["listings"][name]
    assert trees.digest(found) == trees.read()["digests"][name]


@pytest.mark.slow
def test_every_model_has_its_tree():
    found = {name: trees.digest(trees.leaves(name, stacked=True)) for name in list_models()}
    assert found == trees.read()["digests"]


def test_a_digest_sees_any_path_shape_and_type_but_not_the_order():
    lines = ["params/blocks_0/kernel float32 3x4", "params/blocks_1/kernel float32 3x4"]
    changed = (
        [lines[0], "params/blocks_2/kernel float32 3x4"],
        [lines[0], "params/blocks_1/kernel float32 4x3"],
        [lines[0], "params/blocks_1/kernel bfloat16 3x4"],
        lines[:1],
    )
    assert trees.digest(lines[::-1]) == trees.digest(lines)
    assert trees.digest(lines) not in map(trees.digest, changed)


def test_a_listing_counts_what_is_alike():
    lines = ["params/stages_0/blocks_11/b_1 f 3", "params/stages_1/blocks_0/b_1 f 3", "params/c f "]
    assert trees.listing(lines) == ["1 x params/c f ", "2 x params/stages_*/blocks_*/b_* f 3"]
