"""Weights of SigLIP 2 NaFlex: the image tower of transformers, alone and beside the text tower."""

import json

import numpy as np
import pytest

from tests.support import shapes
from tests.support.stored import GOLDEN, loaded, stored, write_files
from vit_jax.errors import UserError
from vit_jax.models import create_model
from vit_jax.models.naflex import weights as naflex
from vit_jax.models.stacking import read_blocks
from vit_jax.weights.convert import model_name, read_pretrained, write_pretrained
from vit_jax.weights.formats import Hints
from vit_jax.weights.io.files import read_tensors
from vit_jax.weights.recognition import recognise

TOWER, TOWERS = "modern/towers/hf_siglip2", "modern/siglip2/two_towers"
CASE = stored(TOWER)


def padded():
    """Images of 3 x 5 and 4 x 2 patches in a budget of 16, and what transformers makes of them."""
    with np.load(GOLDEN / f"{TOWER}.npz") as file:
        found = {k.removeprefix("naflex/"): file[k] for k in file if k.startswith("naflex/")}
    packed = {"patches": found.pop("pixels").astype(np.float32), "grid": found.pop("shapes")}
    return packed, found


def run(name, images):
    record, variables = loaded(name)
    model = create_model(record.name, **record.fields)
    features, kept = shapes.run(
        model, variables, images, method="features", mutable=["intermediates"]
    )
    return features, read_blocks(kept["intermediates"], "out")


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, atol=2e-5 * max(1, np.abs(theirs).max()), rtol=0)


def test_two_aspect_ratios_with_padding_give_transformers_tokens():
    packed, expected = padded()
    features, blocks = run(TOWER, packed)
    mask = expected["mask"] > 0
    assert mask.sum(1).tolist() == [15, 8]
    for number, block in enumerate(blocks):
        close(block[mask], expected[f"block_{number}"][mask])
    close(features.tokens[mask], expected["tokens"][mask])
    close(features.pooled, expected["pooled"])
    assert (features.grid, features.prefix) == ((1, 16), 0)


@pytest.mark.parametrize("answers", ["answers", "others"])
def test_plain_images_give_the_same_as_their_patches(answers):
    expected = getattr(CASE, answers)
    features, blocks = run(TOWER, expected["images"])
    for number, block in enumerate(blocks):
        close(block, expected[f"block_{number}"])
    close(features.pooled, expected["pooled"])


def test_the_image_tower_is_read_beside_the_text_tower():
    case = stored(TOWERS)
    packed = {"patches": case.answers["patches"], "grid": case.answers["grid"].astype(np.int32)}
    features, _ = run(TOWERS, packed)
    mask = np.arange(15) < packed["grid"].prod(1)[:, None]
    close(features.tokens[mask], case.answers["tokens"][mask])
    close(features.pooled, case.answers["pooled"])
    assert loaded(TOWERS)[0].fields == loaded(TOWER)[0].fields


def test_fields_and_preprocessing():
    record, _ = loaded(TOWER)
    assert record.name == "NaFlexViT"
    expected = {"image_size": 16, "patch_size": 4, "width": 32, "depth": 2, "heads": 2}
    expected |= {"mlp_width": 40, "pool": "map", "activation": "gelu_tanh", "norm_eps": 1e-6}
    assert {name: record.fields[name] for name in expected} == expected
    preprocessing = record.preprocessing
    assert (preprocessing.max_tokens, preprocessing.patch_size) == (256, (4, 4))
    assert (preprocessing.interpolation, preprocessing.mean) == ("bilinear", (0.5, 0.5, 0.5))


def test_what_is_read_is_written_again_bit_for_bit(tmp_path):
    folder = write_pretrained(tmp_path / "written", "huggingface", *loaded(TOWER))
    written = read_tensors(folder)
    assert set(written) == set(CASE.tensors)
    for name, array in written.items():
        np.testing.assert_array_equal(array, CASE.tensors[name], err_msg=name)
    config = json.loads((folder / "config.json").read_text())
    theirs = {k: v for k, v in CASE.config.items() if k != "transformers_version"}
    assert {k: v for k, v in config.items() if k in theirs} == theirs
    processor = json.loads((folder / "preprocessor_config.json").read_text())
    assert {k: v for k, v in processor.items() if k in CASE.preprocessor} == CASE.preprocessor


def test_the_class_in_its_published_size_has_a_name():
    base = {"image_size": 256, "patch_size": 16, "width": 768, "depth": 12, "heads": 12}
    fields = {**loaded(TOWER)[0].fields, **base, "mlp_width": 3072}
    assert model_name(fields, "NaFlexViT") == "NaFlexViT-B/16"


def classifier(tensors):
    rng = np.random.default_rng(0)
    prefixed = {f"vision_model.{name}": array for name, array in tensors.items()}
    head = {"weight": rng.normal(size=(3, 32)), "bias": rng.normal(size=3)}
    return prefixed | {f"classifier.{k}": v.astype(np.float32) for k, v in head.items()}


def test_a_classifier_reads_the_mean_of_real_patches(tmp_path):
    tensors = classifier(CASE.tensors)
    config = {"model_type": "siglip2", "vision_config": CASE.config}
    record, variables = read_pretrained(write_files(tmp_path, tensors, config))
    assert (record.fields["pool"], record.fields["num_classes"]) == ("mean", 3)
    packed, expected = padded()
    logits = shapes.run(record.create_model(), variables, packed)
    mask = expected["mask"][..., None]
    mean = (expected["tokens"] * mask).sum(1) / mask.sum(1)
    close(logits, mean @ tensors["classifier.weight"].T + tensors["classifier.bias"])


def test_a_fixed_size_siglip_is_none_of_these():
    tensors = stored("modern/towers/hf_siglip").tensors
    assert not naflex.normalize_names(tensors)
    assert recognise(CASE.tensors) is naflex.FORMAT


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"patch_size": 5}, "patches with 48 numbers, which are not 5 x 5 pixels of 3 channels"),
        ({"num_attention_heads": 3}, "3 heads do not divide the width 32"),
    ],
)
def test_a_configuration_of_another_model_is_refused(config, message):
    tensors = naflex.normalize_names(CASE.tensors)
    with pytest.raises(UserError, match=message):
        naflex.describe(tensors, {**CASE.config, **config}, Hints())


def test_heads_are_asked_for_without_a_configuration():
    with pytest.raises(UserError, match="--heads=NUMBER"):
        naflex.describe(naflex.normalize_names(CASE.tensors), None, Hints())


def test_the_processor_must_be_of_the_same_patches():
    tensors, processor = naflex.normalize_names(CASE.tensors), {**CASE.preprocessor}
    for change, message in (
        ({"patch_size": 16}, "patch_size = 16, but the model has patches of 4 x 4"),
        ({"max_num_patches": 0}, "max_num_patches = 0 should be a whole number above 0"),
    ):
        config = {**CASE.config, "preprocessor": {**processor, **change}}
        with pytest.raises(UserError, match=message):
            naflex.describe(tensors, config, Hints())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_classes": 3}, "does not support num_classes = 3"),
        ({"image_size": (16, 32)}, "a table of 4 x 8"),
        ({"registers": 2}, "does not support registers = 2"),
    ],
)
def test_models_that_transformers_lacks_are_not_written(change, message, tmp_path):
    record = loaded(TOWER)[0].changed({**loaded(TOWER)[0].fields, **change})
    with pytest.raises(UserError, match=message):
        write_pretrained(tmp_path, "huggingface", record, {"params": {}})
