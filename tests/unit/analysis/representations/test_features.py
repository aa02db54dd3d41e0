"""Features of every layer: those that the model itself gives, under the names of its parameters."""

import dataclasses

import jax
import numpy as np
import pytest

from tests.support.architectures import TINY
from vit_jax.analysis.representations.features import extract_layers, sample
from vit_jax.data import Preprocessing, open_source
from vit_jax.errors import UserError
from vit_jax.inference import Classifier
from vit_jax.models.inputs import trace_init
from vit_jax.models.stacking import read_blocks

SMALL = {"num_classes": 10, "image_size": 16, "in_channels": 1}
VIT = {"patch_size": 8, "width": 8, "depth": 2, "heads": 2}
PYRAMIDS = ("Swin", "PVT", "ResNet", "ConvNeXt", "EfficientNet")


def classifier_of(name, **fields):
    """A model whose parameters are noise: fresh tokens are zero, and so do not show themselves."""
    model = TINY[name].clone(**SMALL, **fields)
    shapes = trace_init(model, np.zeros((1, 16, 16, 1), np.float32))
    rng = np.random.default_rng(0)

    def fill(path, leaf):
        noise = 0.3 * rng.normal(size=leaf.shape).astype(np.float32)
        return 1 + np.abs(noise) if path[-1].key in ("var", "scale") else noise

    variables = dict(jax.tree_util.tree_map_with_path(fill, shapes))
    params = variables.pop("params")
    names = [str(i) for i in range(10)]
    return Classifier(model, params, names, Preprocessing((16, 16), channels=1), variables)


@pytest.fixture(scope="module")
def source(data_dir):
    return open_source("digits", "test[:10]", data_dir=data_dir)


def images_of(source, preprocessing):
    images = np.stack([preprocessing(source[i]["image"]) for i in range(len(source))])
    return preprocessing.normalize(images)


def features_and_sown(classifier, images):
    """What the model itself gives, and what its blocks sow."""

    @jax.jit
    def forward(variables, images):
        return classifier.model.apply(
            variables, images, method="features", mutable=["intermediates"]
        )

    return forward(classifier.variables, images)


def is_in(tree, path):
    for part in path.split("/"):
        if part not in tree:
            return False
        tree = tree[part]
    return True


@pytest.mark.parametrize("name", PYRAMIDS)
def test_the_last_block_of_a_stage_is_the_map_that_the_model_gives(name, source):
    classifier = classifier_of(name, depths=(1, 2))
    layers = extract_layers(classifier, source, pool="mean", batch_size=4)
    blocks = ["stages_0/blocks_0", "stages_1/blocks_0", "stages_1/blocks_1"]
    assert list(layers.features) == ["pixels", *blocks, "pooled"]
    assert all(is_in(classifier.params, block) for block in blocks)
    assert layers.labels.tolist() == [source[i]["label"] for i in range(10)]
    images = images_of(source, classifier.preprocessing)
    seen, _ = features_and_sown(classifier, images)
    for stage, block in ((0, blocks[0]), (1, blocks[2])):
        expected = np.asarray(seen.stages[stage]).mean(axis=(1, 2))
        np.testing.assert_allclose(layers.features[block], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(layers.features["pooled"], seen.pooled, rtol=1e-5, atol=1e-5)


def layer_norm(x, parameters):
    x = np.asarray(x, np.float64)
    normed = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    return normed * parameters["scale"] + parameters["bias"]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("ViT", {"pool": "cls"}),
        ("ViT", {"pool": "cls", "distilled": True, "registers": 2}),
        ("HybridViT", {"stem_units": (1,), "stem_width": 8, "stem_groups": 2}),
    ],
)
def test_a_model_that_reads_its_class_token_is_probed_at_that_token(name, fields, source):
    """The pooled features are the norm of the last block's class token, by definition."""
    classifier = classifier_of(name, **VIT, **fields)
    layers = extract_layers(classifier, source)
    expected = layer_norm(layers.features["blocks_1"], classifier.params["norm"])
    np.testing.assert_allclose(layers.features["pooled"], expected, atol=1e-4)
    of_token = extract_layers(classifier, source, pool="cls")
    np.testing.assert_array_equal(of_token.features["blocks_0"], layers.features["blocks_0"])


def test_the_units_of_a_hybrid_come_before_its_blocks(source):
    classifier = classifier_of("HybridViT", **VIT, stem_units=(1,), stem_width=8, stem_groups=2)
    names = list(extract_layers(classifier, source).features)
    units = ["patch_embed/stages_0/units_0"]
    assert names == ["pixels", *units, "blocks_0", "blocks_1", "pooled"]
    assert is_in(classifier.params, units[0])
    # The map of the ResNet has no class token, so it is not among the layers with one.
    of_token = extract_layers(classifier, source, pool="cls")
    assert list(of_token.features) == ["blocks_0", "blocks_1", "pooled"]


def test_prefix_tokens_take_no_part_in_the_mean(source):
    classifier = classifier_of("ViT", **VIT, pool="cls", distilled=True, registers=2)
    layers = extract_layers(classifier, source, pool="mean")
    images = images_of(source, classifier.preprocessing)
    _, kept = features_and_sown(classifier, images)
    for number, tokens in enumerate(read_blocks(kept["intermediates"], "out")):
        assert tokens.shape == (10, 1 + 1 + 2 + 4, 8)
        expected = np.asarray(tokens)[:, 4:].mean(axis=1)
        np.testing.assert_allclose(layers.features[f"blocks_{number}"], expected, atol=1e-5)


def test_stacked_blocks_have_the_names_and_order_of_blocks_apart(source):
    fields = {"patch_size": 8, "width": 8, "depth": 11, "heads": 2, "pool": "mean"}
    classifier = classifier_of("ViT", **fields, scan_layers=True)
    layers = extract_layers(classifier, source)
    names = [f"blocks_{number}" for number in range(11)]
    assert list(layers.features) == ["pixels", *names, "pooled"]
    images = images_of(source, classifier.preprocessing)
    _, kept = features_and_sown(classifier, images)
    stacked = np.asarray(kept["intermediates"]["blocks"]["out"][0])  # (depth, batch, tokens, width)
    for name, tokens in zip(names, stacked, strict=True):
        np.testing.assert_allclose(layers.features[name], tokens.mean(axis=1), rtol=1e-4, atol=1e-4)


def test_a_mixer_has_the_mean_of_its_patches(source):
    fields = {"patch_size": 8, "width": 8, "depth": 2}
    classifier = classifier_of("Mixer", **fields, token_mlp_width=4, channel_mlp_width=8)
    layers = extract_layers(classifier, source)
    images = images_of(source, classifier.preprocessing)
    _, kept = features_and_sown(classifier, images)
    for number, tokens in enumerate(read_blocks(kept["intermediates"], "out")):
        expected = np.asarray(tokens).mean(axis=1)
        np.testing.assert_allclose(layers.features[f"blocks_{number}"], expected, atol=1e-5)


def test_the_layer_before_the_first_is_the_image(source):
    classifier = classifier_of("ViT", **VIT, pool="mean")
    images = images_of(source, classifier.preprocessing)
    layers = extract_layers(classifier, source)
    np.testing.assert_allclose(layers.features["pixels"], images.reshape(10, -1), atol=1e-6)


def test_layers_that_are_not_there_are_named(source):
    classifier = classifier_of("ViT", **VIT, pool="mean")
    with pytest.raises(UserError, match="did you mean 'blocks_1'"):
        extract_layers(classifier, source).pooled("block_1")
    with pytest.raises(UserError, match="no class token"):
        extract_layers(classifier, source, pool="cls")
    with pytest.raises(UserError, match="own, mean, cls"):
        extract_layers(classifier, source, pool="max")
    several = dataclasses.replace(source, multi_label=True)
    with pytest.raises(UserError, match="several labels"):
        extract_layers(classifier, several)


def test_a_sample_is_of_different_images_and_the_same_every_time(data_dir):
    whole = open_source("digits", "test", data_dir=data_dir)
    some, again = sample(whole, 50), sample(whole, 50)
    assert len(some) == 50 and sample(whole, 0) is whole and sample(whole, 360) is whole
    np.testing.assert_array_equal(some.labels, again.labels)
    assert len({some[i]["image"].tobytes() for i in range(50)}) == 50
    for i in (0, 49):
        assert some[i]["label"] == some.labels[i]
        np.testing.assert_array_equal(some[i]["image"], again[i]["image"])
    assert not np.array_equal(some.labels, sample(whole, 50, seed=1).labels)
    everything = {(whole[i]["image"].tobytes(), whole[i]["label"]) for i in range(360)}
    assert (some[7]["image"].tobytes(), some[7]["label"]) in everything
