"""TimeSformer of transformers: read, every block compared, and written back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.shapes import relative_difference
from tests.support.stored import loaded, stored, write_files
from vit_jax.errors import UserError
from vit_jax.models.registry import list_models, model_fields
from vit_jax.weights.convert import model_name, read_pretrained, write_pretrained
from vit_jax.weights.formats import Hints

TOLERANCE = 2e-5  # of the largest number, in float32
KINDS = ("divided", "joint", "space")
FIELDS = {
    "num_classes": 5,
    "image_size": 16,
    "patch_size": 4,
    "in_channels": 3,
    "num_frames": 3,
    "width": 16,
    "depth": 2,
    "heads": 2,
    "mlp_width": 40,
    "qkv_bias": True,
    "activation": "gelu",
    "norm_eps": 1e-3,
    "pos_resize": "torch-nearest",
}


def read(kind):
    return loaded(f"modern/timesformer/{kind}")


def golden(kind):
    return stored(f"modern/timesformer/{kind}")


def by_frame(tokens, frames):
    """Tokens of transformers, place by place, in the order of frames."""
    batch, rows, width = tokens.shape
    places = tokens[:, 1:].reshape(batch, (rows - 1) // frames, frames, width).swapaxes(1, 2)
    return np.concatenate([tokens[:, :1], places.reshape(batch, -1, width)], axis=1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_block_and_the_logits_are_those_of_transformers(kind):
    """Also of clips with another height and another number of frames."""
    record, variables = read(kind)
    model, case = record.create_model(), golden(kind)

    @jax.jit
    def run(several):
        return [
            (
                model.apply(variables, x),
                *model.apply(variables, x, method="features", mutable="intermediates"),
            )
            for x in several
        ]

    answers = (case.answers, case.others)
    found = run([one["images"] for one in answers])
    for (logits, features, sown), expected in zip(found, answers, strict=True):
        frames = expected["images"].shape[1] if kind != "space" else 1
        sown = sown["intermediates"]
        several = {f"block_{i}": sown[f"blocks_{i}"]["out"][0] for i in range(2)}
        several["tokens"] = features.tokens
        for name, array in several.items():
            theirs = by_frame(expected[name], frames)
            assert relative_difference(array, theirs) <= TOLERANCE, name
        assert relative_difference(features.pooled, expected["pooled"]) <= TOLERANCE
        assert relative_difference(logits, expected["logits"]) <= TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_is_told_by_shapes_and_configuration(kind):
    record, _ = read(kind)
    assert record.name == "TimeSformer"
    assert dict(record.fields) == {**FIELDS, "space_time": kind}
    assert record.class_names == ("ant", "bee", "cat", "dog", "eel")
    preparing = record.preprocessing
    assert (preparing.mean, preparing.std) == ((0.45,) * 3, (0.225,) * 3)
    assert (preparing.size, preparing.resize, preparing.crop) == ((16, 16), "cover", 1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_written_back_the_tensors_are_those_of_transformers_bit_for_bit(kind, tmp_path):
    record, variables = read(kind)
    folder = write_pretrained(tmp_path / "ours", "huggingface", record, variables)
    written, theirs = load_file(folder / "model.safetensors"), golden(kind).tensors
    assert set(written) == set(theirs)
    for name, tensor in theirs.items():
        np.testing.assert_array_equal(written[name], tensor)
    again, _ = read_pretrained(folder)
    assert (again.fields, again.preprocessing) == (record.fields, record.preprocessing)


@pytest.mark.parametrize("name", [name for name in list_models("TimeSformer-*")])
def test_a_published_size_has_its_name(name):
    assert model_name(model_fields(name), "TimeSformer") == name


def test_without_a_configuration_only_the_heads_have_to_be_told(tmp_path):
    tensors = golden("divided").tensors
    folder = write_files(tmp_path / "bare", tensors)
    with pytest.raises(UserError, match="--heads=NUMBER"):
        read_pretrained(folder)
    record, _ = read_pretrained(folder, Hints(heads=2))
    expected = {**FIELDS, "space_time": "divided", "norm_eps": 1e-6}
    assert dict(record.fields) == expected


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_frames": 8}, "num_frames = 8, but the tensors have 3"),
        ({"attention_type": "space_only"}, "attention_type = 'space_only', but .* 'divided_space"),
        ({"hidden_act": "elu"}, "hidden_act = 'elu' is not supported"),
    ],
)
def test_a_configuration_of_another_model_is_one_sentence(change, sentence, tmp_path):
    case = golden("divided")
    folder = write_files(tmp_path / "wrong", case.tensors, {**case.config, **change})
    with pytest.raises(UserError, match=sentence) as caught:
        read_pretrained(folder)
    assert "\n" not in str(caught.value)


def test_tubelets_are_not_written_for_transformers(tmp_path):
    record, variables = read("joint")
    params = dict(variables["params"])
    kernel = params["patch_embed"]["kernel"]
    params["patch_embed"] = {**params["patch_embed"], "kernel": jnp.tile(kernel, (1, 1, 3, 1))}
    params["time_embed"] = params["time_embed"][:, :1]
    record = record.__class__(**{**record.__dict__, "fields": {**record.fields, "tubelet_size": 3}})
    with pytest.raises(UserError, match="does not support tubelet_size = 3"):
        write_pretrained(tmp_path / "ours", "huggingface", record, {"params": params})
