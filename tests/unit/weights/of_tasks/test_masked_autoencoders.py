"""Masked autoencoders of other libraries: transformers' own numbers, and files written again."""

import dataclasses

import jax
import numpy as np
import pytest

from tests.support.stored import stored, write_files
from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.inference.pretrained import convert_with_decoder
from vit_jax.runs import RunDir
from vit_jax.tasks.masked.masked_autoencoding import MaskedAutoencoding
from vit_jax.weights.convert import write_pretrained
from vit_jax.weights.formats import Hints
from vit_jax.weights.io import files
from vit_jax.weights.of_tasks.masked_autoencoders import (
    read_masked_autoencoder,
    whole_table,
    write_masked_autoencoder,
)

CASE = stored("hf_mae_whole")
TOLERANCE = 2e-5
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return read_masked_autoencoder(
        write_files(tmp_path_factory.mktemp("mae"), CASE.tensors, CASE.config)
    )


def batch():
    return {"image": CASE.answers["images"], "noise": CASE.answers["noise"]}


def test_loss_and_predictions_are_those_of_transformers(found):
    task = MaskedAutoencoding(found.model, **found.fields)
    predictions, _ = task.predict(found.variables, batch(), KEY)
    expected = CASE.answers["predictions"]
    np.testing.assert_allclose(predictions, expected, atol=TOLERANCE * np.abs(expected).max())
    loss = task.loss(found.variables, batch(), KEY, train=False)
    np.testing.assert_allclose(loss.total / loss.weight, CASE.answers["loss"], rtol=TOLERANCE)


def test_the_loss_of_raw_pixels_is_that_of_transformers(found):
    task = MaskedAutoencoding(found.model, **{**found.fields, "norm_pix": False})
    loss = task.loss(found.variables, batch(), KEY, train=False)
    np.testing.assert_allclose(loss.total / loss.weight, CASE.answers["raw_loss"], rtol=TOLERANCE)


def test_the_fields_are_those_of_the_configuration(found):
    assert found.fields == {
        "decoder_width": 8,
        "decoder_depth": 2,
        "decoder_heads": 2,
        "mask_ratio": 0.75,
        "norm_pix": True,
    }
    assert found.record.task == "masked_autoencoding" and found.record.encoder == "encoder"
    assert found.record.fields["positions"] == "sincos2d"


def published(tensors):
    """The names of published files, where transformers writes others for the decoder's blocks."""
    old = "decoder.decoder_encoder.layer."
    return {name.replace(old, "decoder.decoder_layers."): x for name, x in tensors.items()}


@pytest.mark.parametrize("names", [published(CASE.tensors), CASE.memory], ids=["file", "memory"])
def test_other_names_give_the_same(found, names, tmp_path):
    again = read_masked_autoencoder(write_files(tmp_path / "other", names, CASE.config))
    jax.tree.map(np.testing.assert_array_equal, again.variables, found.variables)


def test_what_is_written_for_transformers_are_the_published_tensors(found, tmp_path):
    write_masked_autoencoder(tmp_path, "huggingface", found)
    written = files.read_tensors(tmp_path / "model.safetensors")
    expected = published(CASE.tensors)
    assert set(written) == set(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(written[name], array, atol=1e-6, err_msg=name)


def of_authors(found):
    """The model with the epsilon of the authors, the only one that timm has."""
    fields = {**found.record.fields, "norm_eps": 1e-6}
    return dataclasses.replace(found, record=dataclasses.replace(found.record, fields=fields))


def test_the_authors_names_are_written_and_read_again(found, tmp_path):
    write_masked_autoencoder(tmp_path, "timm", of_authors(found))
    written = files.read_tensors(tmp_path / "model.safetensors")
    assert {"decoder_pos_embed", "decoder_blocks.1.attn.qkv.weight", "mask_token"} <= set(written)
    again = read_masked_autoencoder(tmp_path, Hints(heads=2), decoder_heads=2)
    jax.tree.map(np.testing.assert_array_equal, again.variables, found.variables)


def test_a_fixed_table_is_written_as_a_parameter(found, tmp_path):
    encoder = {"params": found.variables["params"]["encoder"]}
    write_pretrained(tmp_path, "timm", of_authors(found).record.alone(), encoder)
    table = files.read_tensors(tmp_path / "model.safetensors")["pos_embed"]
    np.testing.assert_array_equal(table, whole_table((4, 4), 16))


def without(beginning):
    return {name: x for name, x in CASE.tensors.items() if not name.startswith(beginning)}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (without("decoder"), "the file has no decoder; those of the authors named mae_visualize_"),
        (without("decoder.decoder_norm"), "the decoder has no norm/"),
        (
            {**CASE.tensors, "decoder.decoder_pos_embed": np.ones((1, 17, 8), np.float32)},
            "not the fixed one of sines and cosines",
        ),
    ],
)
def test_a_file_that_is_no_masked_autoencoder_is_refused(tensors, message, tmp_path):
    with pytest.raises(UserError, match=message):
        read_masked_autoencoder(write_files(tmp_path / "bad", tensors, CASE.config))


def test_the_preprocessing_is_the_authors(found):
    assert isinstance(found.record.preprocessing, Preprocessing)
    assert found.record.preprocessing.mean == (0.485, 0.456, 0.406)


def test_a_run_is_converted_with_its_decoder(found, tmp_path):
    run = RunDir(tmp_path / "run")
    said = {name: found.fields[name] for name in ("decoder_heads", "mask_ratio")}
    run.write_model(dataclasses.replace(found.record, options=said))
    run.write_variables(found.variables, found.record)
    convert_with_decoder(run.path, tmp_path / "files", "huggingface")
    again = read_masked_autoencoder(tmp_path / "files")
    jax.tree.map(np.testing.assert_array_equal, again.variables, found.variables)
    assert again.fields == found.fields


def test_a_classifier_has_no_decoder(found, tmp_path):
    run = RunDir(tmp_path / "run")
    run.write_model(dataclasses.replace(found.record, task="classification"))
    run.write_variables(found.variables, found.record)
    with pytest.raises(UserError, match="has no decoder, because its task is 'classification'"):
        convert_with_decoder(run.path, tmp_path / "files", "timm")
