"""Weights out of what training scripts wrap around them."""

import numpy as np
import pytest

from vit_jax.errors import UserError
from vit_jax.weights.io.pickles import Opaque
from vit_jax.weights.io.unwrap import unwrap

A, B = np.ones(2), np.zeros((2, 2))
COUNTER = np.array(7)
VIT = {"cls_token": A, "blocks.0.norm1.weight": B}


def prefixed(prefix, tensors=None):
    return {prefix + name: value for name, value in (tensors or VIT).items()}


@pytest.mark.parametrize(
    "tree",
    [
        VIT,
        {"model": VIT},
        {"state_dict": VIT, "epoch": 3, "arch": "vit", "optimizer": {"state": {0: {"exp_avg": A}}}},
        {"model": VIT, "epoch": COUNTER, "lr_scheduler": {"base": A}, "scaler": {"scale": A}},
        {"module": prefixed("module.")},
        {"state_dict": prefixed("module._orig_mod.")},
        prefixed("_orig_mod.module."),
        prefixed("backbone."),
        prefixed("module.backbone."),
        {"weights": {"of": {"the": {"model": VIT}}}},
        {"model": {**prefixed("module."), "n_averaged": COUNTER}},
        {"model": VIT, "args": Opaque("argparse.Namespace"), "rng_state": A, "none": None},
        {"model": VIT, "criterion": {"center": A}, "optimizer_states": [{"exp_avg": A}]},
    ],
)
def test_one_set_of_weights_is_taken_out_of_its_wrappers(tree):
    assert unwrap(tree, None, "a.pth") == VIT


def test_a_prefix_that_only_some_names_have_stays():
    tree = {**prefixed("backbone."), "head.mlp.0.weight": B}
    assert unwrap(tree, None, "a.pth") == tree
    assert unwrap(prefixed("vit."), None, "a.pth") == prefixed("vit.")


TWO = {"student": prefixed("module.backbone."), "teacher": {**prefixed("backbone."), "head.w": B}}


def test_several_sets_are_listed_and_asked_for():
    with pytest.raises(
        UserError,
        match=r"a.pth has several sets of tensors: 'student' \(2 tensors\), 'teacher'"
        r" \(3 tensors\); choose one with --part=NAME",
    ):
        unwrap(TWO, None, "a.pth")


def test_tensors_beside_a_set_are_not_dropped_in_silence():
    with pytest.raises(UserError, match=r"outside of them \(1 tensor\), 'model' \(2 tensors\)"):
        unwrap({"model": VIT, "mean": A}, None, "a.pth")


@pytest.mark.parametrize(
    ("tree", "part"),
    [
        (TWO, "student"),
        (TWO, "teacher/backbone"),
        ({"teacher": {"backbone": VIT, "head": {"w": B}}}, "teacher/backbone"),
        ({"model": prefixed("visual.")}, "visual"),
        ({"model": prefixed("visual.")}, "model/visual"),
        (prefixed("params/img/") | prefixed("params/txt/"), "params/img"),
        (prefixed("params/img/") | prefixed("params/imgs/"), "params/img/"),
        ({"model": VIT, "model_ema": {"x": A}}, "model"),
        ({"model": VIT, "optimizer": {"x": A}}, "model"),
    ],
)
def test_a_part_is_a_set_or_what_names_begin_with(tree, part):
    assert unwrap(tree, part, "a.pth") == VIT


@pytest.mark.parametrize("part", ["techer", "model", "teacher/head/w", "backbone", ""])
def test_a_part_that_is_not_there_lists_those_that_are(part):
    with pytest.raises(UserError, match=rf"no part '{part}'; use one of 'student'"):
        unwrap(TWO, part, "a.pth")


def test_near_names_are_suggested():
    with pytest.raises(UserError, match=r"did you mean 'teacher'"):
        unwrap(TWO, "techer", "a.pth")


@pytest.mark.parametrize(
    ("tree", "what"),
    [
        ({}, "a dict"),
        ([A], "a list"),
        (None, "a NoneType"),
        ({"epoch": 3, "note": "x"}, "the keys 'epoch', 'note'"),
        ({"optimizer": {"x": A}}, "the keys 'optimizer'"),
    ],
)
def test_a_file_without_weights_says_what_it_holds(tree, what):
    with pytest.raises(UserError, match=rf"has no tensors by name, only {what}"):
        unwrap(tree, None, "a.pth")


def test_what_could_not_be_read_among_the_weights_is_named():
    with pytest.raises(UserError, match=r"'pos_embed' is a numpy.ndarray, not a tensor"):
        unwrap({**VIT, "pos_embed": Opaque("numpy.ndarray")}, None, "a.pth")


def test_a_hundred_thousand_levels_of_nesting_end_in_a_sentence():
    tree = VIT
    for _ in range(100_000):
        tree = {"model": tree}
    with pytest.raises(UserError, match=r"has no tensors by name"):
        unwrap(tree, None, "a.pth")


class Counted(dict):
    """A dictionary that counts how often its items are asked for, all of its kind together."""

    asked = 0

    def items(self):
        Counted.asked += 1
        assert Counted.asked < 1000
        return super().items()


def test_a_dictionary_that_is_shared_is_walked_once():
    """Five levels of 30 references each to the next are 30^4 paths to the last."""
    tree = Counted(VIT)
    for _ in range(4):
        tree = Counted({f"k{i}": tree for i in range(30)})
    Counted.asked = 0
    assert unwrap(tree, None, "a.pth") == VIT
    tree["k7"]["again"] = tree  # pickles may have circles too
    assert unwrap(tree, None, "a.pth") == VIT


def test_a_set_that_is_shared_is_found_under_each_of_its_names():
    tree = {"model": VIT, "best": {"model": VIT}, "other": {"x": A}}
    assert unwrap(tree, "best/model", "a.pth") == VIT
    assert unwrap(tree, "model", "a.pth") == VIT
    with pytest.raises(UserError, match=r"tensors: 'model' \(2 tensors\), 'other' \(1 tensor\);"):
        unwrap(tree, None, "a.pth")


def test_a_thousand_sets_are_counted_and_not_listed():
    with pytest.raises(UserError, match=r"'s11' \(2 tensors\) and 988 more") as refused:
        unwrap({f"s{i}": dict(VIT) for i in range(1000)}, None, "a.pth")
    assert len(str(refused.value)) < 600


def test_settings_that_hold_tensors_are_no_weights():
    tree = {"state_dict": VIT, "hyper_parameters": {"class_weights": A}, "val_metric": {"hits": A}}
    assert unwrap(tree, None, "a.ckpt") == VIT
