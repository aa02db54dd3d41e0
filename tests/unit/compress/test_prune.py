"""Removal of heads and hidden units: the same function without what is not needed."""

import dataclasses

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from tests.support.shapes import VIT, apply, random_images, random_variables
from vit_jax.compress.prune import (
    choose,
    magnitude_scores,
    prune,
    remove,
    taylor_scores,
)
from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.inference import load
from vit_jax.models import ViT, create_model
from vit_jax.models.description import describe
from vit_jax.models.inputs import trace_init
from vit_jax.models.stacking import stack_blocks
from vit_jax.runs import ModelRecord, RunDir

FIELDS = {**VIT, "heads": 4, "mlp_width": 6}
IMAGES = random_images(2, 16, 16, 3)


def tiny(**fields):
    model = ViT(**{**FIELDS, **fields})
    params = random_variables(model, IMAGES[:1])["params"]
    return model, params, describe(params, model.roles())


def without(params, block, head, unit):
    """Set the rows of a head and of a hidden unit in the last kernels to zero."""
    flat = flatten_dict(jax.tree.map(np.array, params), sep="/")
    flat[f"{block}/attn/out/kernel"][head] = 0
    flat[f"{block}/mlp/fc2/kernel"][unit] = 0
    return unflatten_dict(flat, sep="/")


@pytest.mark.parametrize("fields", [{}, {"mlp": "swiglu", "positions": "relative"}])
def test_what_adds_nothing_is_removed_and_the_logits_stay(fields):
    model, params, described = tiny(**fields)
    silent = without(without(params, "blocks_0", 2, 4), "blocks_1", 0, 5)
    heads = [np.array([0, 1, 3]), np.array([1, 2, 3])]
    units = [np.array([0, 1, 2, 3, 5]), np.array([0, 1, 2, 3, 4])]
    pruned = remove(silent, described, heads, units, gated=model.mlp == "swiglu")
    small = model.clone(heads=3, head_dim=4, mlp_width=5)
    shapes = trace_init(small, IMAGES)["params"]
    assert jax.tree.map(np.shape, pruned) == jax.tree.map(np.shape, shapes)
    expected = apply(model, silent, IMAGES)
    np.testing.assert_allclose(apply(small, pruned, IMAGES), expected, rtol=0, atol=2e-5)


def test_choice_takes_the_least_important_of_all_blocks_or_evenly():
    scores = [np.array([3.0, 1.0, 2.0, 4.0]), np.array([0.1, 0.4, 0.2, 10.0])]
    everywhere = [kept.tolist() for kept in choose(scores, 0.375)]  # of 8: 3
    assert everywhere == [[0, 1, 2, 3], [3]]
    assert [kept.tolist() for kept in choose(scores, 0.5, evenly=True)] == [[0, 3], [1, 3]]
    assert [kept.tolist() for kept in choose(scores, 0.99)] == [[3], [3]]
    assert [len(kept) for kept in choose(scores, 0.0)] == [4, 4]


def test_magnitudes_are_shares_of_the_norm_of_a_block():
    _, params, described = tiny()
    heads, units = magnitude_scores(params, described)
    attn, mlp = params["blocks_1"]["attn"], params["blocks_1"]["mlp"]

    def norm_of_head(n):
        parts = attn["qkv"]["kernel"][:, :, n], attn["qkv"]["bias"][:, n], attn["out"]["kernel"][n]
        return np.linalg.norm(np.concatenate([np.ravel(part) for part in parts]))

    def norm_of_unit(n):
        bias = mlp["fc1"]["bias"][n : n + 1]
        return np.linalg.norm([*mlp["fc1"]["kernel"][:, n], *bias, *mlp["fc2"]["kernel"][n]])

    for scores, norm in ((heads[1], norm_of_head), (units[1], norm_of_unit)):
        norms = np.array([norm(n) for n in range(len(scores))])
        np.testing.assert_allclose(scores, norms / np.linalg.norm(norms), rtol=1e-5)


@dataclasses.dataclass(frozen=True)
class Squares:
    """A task of a model without data: the loss is the mean square of the logits."""

    model: ViT

    def normalized(self, batch, preprocessing):
        return batch

    def loss(self, variables, batch, rng, *, train):
        logits = self.model.apply(variables, batch["image"], train=train)
        return dataclasses.make_dataclass("Loss", ["total", "weight"])((logits**2).sum(), 2.0)


class Data:
    """An experiment as the scores use it: batches with padding and unreadable images."""

    preprocessing, train_source = None, range(2)

    def __init__(self, model, *masks):
        self.task, self.masks = Squares(model), masks

    def eval_batches(self, source):
        for mask in self.masks:
            yield {"image": IMAGES, "mask": np.array(mask)}


def test_taylor_scores_are_squared_derivatives_by_gates():
    model, params, _ = tiny()
    heads, units = taylor_scores(Data(model, [1, 1], [0, 0], [1, 0]), {"params": params}, 6)
    times = np.array([2, 1])  # that each image is read

    @jax.jit
    def losses(params):
        return (model.apply({"params": params}, IMAGES) ** 2).sum(axis=1) / 2

    def difference(path, row, step=2e-2):
        flat = flatten_dict(jax.tree.map(np.array, params), sep="/")
        kernel, values = flat[path][row].copy(), []
        for gate in (1 + step, 1 - step):
            flat[path][row] = kernel * gate
            values.append(np.asarray(losses(unflatten_dict(flat, sep="/"))))
        return (values[0] - values[1]) / (2 * step)

    of_head = difference("blocks_0/attn/out/kernel", 1)  # of every image
    np.testing.assert_allclose(heads[0][1], (times * of_head**2).sum(), rtol=0.02)
    of_unit = difference("blocks_1/mlp/fc2/kernel", 4)
    np.testing.assert_allclose(units[1][4], (times * of_unit**2).sum(), rtol=0.02)


def test_fewer_images_than_a_batch_are_scored_without_its_padding():
    model, params, _ = tiny()
    alone = [taylor_scores(Data(model, mask), {"params": params}, 2) for mask in ([1, 0], [0, 1])]
    both = taylor_scores(Data(model, [1, 1], [1, 0]), {"params": params}, 2)
    for first, second, sums in zip(*map(jax.tree.leaves, (*alone, both)), strict=True):
        np.testing.assert_allclose(2 * first + second, sums, rtol=1e-4)


def written(path, name, fields):
    """Write the run of a model with random parameters."""
    record = ModelRecord(name, fields, Preprocessing((16, 16)), ("a", "b", "c"))
    run = RunDir(path)
    run.write_variables(random_variables(record.create_model(), IMAGES[:1]), record)
    run.write_model(record)
    return run.path


HYBRID = {"patch_size": 8, "stem_units": (1, 1), "stem_width": 4, "stem_groups": 2}


@pytest.mark.parametrize(
    ("name", "fields"),
    [("ViT-Ti/16", {**FIELDS, "pool": "map"}), ("HybridViT", {**FIELDS, **HYBRID})],
)
def test_a_pooling_and_a_stem_stay_as_they_are(tmp_path, name, fields):
    run = written(tmp_path / "run", name, fields)
    pruned = prune(run, tmp_path / "out", heads=0.25, mlp=0.5, by="magnitude")
    assert len(pruned.heads) == len(pruned.mlp_width) == 2
    found = RunDir(tmp_path / "out").read_variables()[0]["params"]
    shapes = trace_init(pruned.record.create_model(), IMAGES)["params"]
    assert jax.tree.map(np.shape, found) == jax.tree.map(np.shape, shapes)


def test_without_a_readable_image_there_are_no_derivatives():
    model, params, _ = tiny()
    with pytest.raises(UserError, match="none of the training images can be read"):
        taylor_scores(Data(model, [0, 0]), {"params": params}, 2)


def test_a_run_is_pruned_to_a_run_of_its_own(tmp_path):
    _, params, _ = tiny()
    fields = {**FIELDS, "scan_layers": True}
    record = ModelRecord("ViT-Ti/16", fields, Preprocessing((16, 16)), ("a", "b", "c"))
    run = RunDir(tmp_path / "run")
    run.write_variables(stack_blocks({"params": params}), record)
    run.write_model(record)
    merging = load(run.path, tome_r=2, scan_layers=False)  # blocks apart, as fewer tokens need
    assert merging.params["blocks_1"]["mlp"]["fc1"]["kernel"].shape == (16, 6)
    pruned = prune(run.path, tmp_path / "out", heads=0.25, mlp=0.5, by="magnitude", evenly=True)
    assert (pruned.heads, pruned.mlp_width) == ((3, 3), (3, 3))
    found = load(tmp_path / "out")
    assert (found.model.heads, found.model.head_dim, found.model.mlp_width) == (3, 4, 3)
    assert found.params["blocks_1"]["attn"]["qkv"]["kernel"].shape == (16, 3, 3, 4)
    left = sum(x.size for x in jax.tree.leaves(found.params))
    assert pruned.after.parameters == left < pruned.before.parameters
    assert "without 25 % of the heads and 50 % of the hidden units" in found._record.origin


@pytest.mark.parametrize(
    ("name", "fields", "asked", "message"),
    [
        ("ViT-Ti/16", FIELDS, {"heads": 1.0}, "heads=1.0 must be a share"),
        ("ViT-Ti/16", FIELDS, {}, "nothing to prune"),
        ("ViT-Ti/16", FIELDS, {"mlp": 0.5, "by": "luck"}, "use taylor or magnitude"),
        ("ViT-Ti/16", {**FIELDS, "lora_rank": 2}, {"mlp": 0.5}, "with lora_rank=0 can be pruned"),
        ("ViT-Ti/16", {**FIELDS, "heads": (4, 2)}, {"mlp": 0.5}, "has heads of 4 and 8 channels"),
        ("ViT-Ti/16", FIELDS, {"mlp": 0.5}, "no training images for by=taylor; use by=magnitude"),
        ("Mixer-S/16", {"image_size": 32}, {"mlp": 0.5}, "Mixer-S/16 has no numbers of heads"),
    ],
)
def test_wrong_input_is_one_sentence(tmp_path, name, fields, asked, message):
    record = ModelRecord(name, fields, Preprocessing((16, 16)), ("a", "b", "c"))
    run = RunDir(tmp_path / "run")
    run.write_variables({"params": {"a": np.zeros(1, np.float32)}}, record)
    run.write_model(record)
    with pytest.raises(UserError, match=message):
        prune(run.path, tmp_path / "out", **asked)
    assert not (tmp_path / "out").exists()
    assert create_model(name, **fields) is not None
