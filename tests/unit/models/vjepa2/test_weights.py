"""V-JEPA 2's encoder of transformers: read, every block compared, and written back."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.shapes import relative_difference
from tests.support.stored import loaded, stored, write_files
from vit_jax.errors import UserError
from vit_jax.models.registry import list_models, model_fields
from vit_jax.weights.convert import (
    model_name,
    model_of_tensors,
    read_pretrained,
    write_pretrained,
)
from vit_jax.weights.formats import Hints
from vit_jax.weights.io.unwrap import unwrap

TOLERANCE = 2e-5  # of the largest number, in float32
NAME = "modern/vjepa2/encoder"
FIELDS = {
    "num_classes": 0,
    "image_size": 6,
    "patch_size": 2,
    "in_channels": 3,
    "num_frames": 4,
    "tubelet_size": 2,
    "width": 40,
    "depth": 2,
    "heads": 2,
    "mlp_width": 20,
    "qkv_bias": True,
    "activation": "gelu",
    "norm_eps": 1e-3,
}


def test_every_block_and_the_tokens_are_those_of_transformers():
    """Also of clips of 3 x 2 patches and of more frames."""
    record, variables = loaded(NAME)
    model, case = record.create_model(), stored(NAME)

    @jax.jit
    def run(several):
        asked = {"method": "features", "mutable": "intermediates"}
        return [model.apply(variables, clips, **asked) for clips in several]

    answers = (case.answers, case.others)
    found = run([one["images"] for one in answers])
    for (features, sown), expected in zip(found, answers, strict=True):
        sown = sown["intermediates"]
        several = {f"block_{i}": sown[f"blocks_{i}"]["out"][0] for i in range(2)}
        several |= {"tokens": features.tokens, "pooled": features.pooled}
        for name, array in several.items():
            assert relative_difference(array, expected[name]) <= TOLERANCE, name
    assert [(one.frames, one.grid) for one, _ in found] == [(2, (3, 3)), (3, (3, 2))]


def test_the_model_is_told_by_shapes_and_configuration():
    record, _ = loaded(NAME)
    assert (record.name, dict(record.fields)) == ("VJEPA2", FIELDS)
    preparing = record.preprocessing
    assert (preparing.shape, preparing.resize) == ((4, 6, 6, 3), "cover")
    assert (preparing.interpolation, preparing.mean) == ("bilinear", (0.485, 0.456, 0.406))
    assert int(6 / preparing.crop) == 6  # 6 * 256 / 224, rounded down


def test_written_back_the_encoder_is_that_of_transformers_bit_for_bit(tmp_path, capsys):
    case = stored(NAME)
    published = write_files(tmp_path / "theirs", case.tensors, case.config, case.preprocessor)
    record, variables = read_pretrained(published)
    assert "(the predictor of pre-training, which no model here has)" in capsys.readouterr().err
    folder = write_pretrained(tmp_path / "ours", "huggingface", record, variables)
    written = load_file(folder / "model.safetensors")
    theirs = {name: x for name, x in case.tensors.items() if name.startswith("encoder.")}
    assert set(written) == set(theirs)
    for name, tensor in theirs.items():
        np.testing.assert_array_equal(written[name], tensor)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    assert {k: case.config[k] for k in config if k in case.config} == config
    again, _ = read_pretrained(folder)
    assert (again.fields, again.preprocessing) == (record.fields, record.preprocessing)


def authors_tensors(tensors, table=False):
    """The encoder with the names of its authors' files (`src/models/vision_transformer.py`)."""
    found = {}
    for name, array in tensors.items():
        if not name.startswith("encoder.") or ".attention.key." in name:
            continue
        if ".attention.query." in name:
            parts = [tensors[name.replace("query", one)] for one in ("query", "key", "value")]
            name, array = name.replace("attention.query", "attn.qkv"), np.concatenate(parts)
        elif ".attention.value." in name:
            continue
        name = name.replace("encoder.embeddings.patch_embeddings.", "patch_embed.")
        name = name.replace("encoder.layernorm.", "norm.").replace("encoder.layer.", "blocks.")
        found[f"module.backbone.{name.replace('.attention.', '.attn.')}"] = array
    if table:
        found["module.backbone.pos_embed"] = np.zeros((1, 18, 40), np.float32)
    return found


def test_the_authors_names_are_read_to_the_same_numbers():
    encoder = authors_tensors(stored(NAME).tensors)
    assert encoder["module.backbone.blocks.1.attn.qkv.weight"].shape == (120, 40)
    file = {"encoder": {}, "target_encoder": encoder, "predictor": {"module.x": np.ones(3)}}
    tensors = unwrap(file, "target_encoder", "vitl.pt")
    record, variables, notes = model_of_tensors(tensors, None, Hints(heads=2))
    jax.tree.map(np.testing.assert_array_equal, variables, loaded(NAME)[1])
    assert not notes
    usual = {"image_size": 256, "num_frames": 64, "norm_eps": 1e-6}
    assert dict(record.fields) == {**FIELDS, **usual}


def test_with_a_table_of_positions_it_may_be_the_first_v_jepa():
    encoder = authors_tensors(stored(NAME).tensors, table=True)
    tensors = unwrap({"target_encoder": encoder}, None, "vitl.pt")
    with pytest.raises(UserError, match="fit the first V-JEPA, .* use --origin=vjepa2$"):
        model_of_tensors(tensors, None, Hints(heads=2))
    notes = model_of_tensors(tensors, None, Hints("vjepa2", heads=2))[2]
    assert [note.split(":")[0] for note in notes] == ["skipped"]


def test_a_classifier_of_transformers_is_read_as_its_encoder():
    case = stored(NAME)
    tensors = {f"vjepa2.{name}": array for name, array in case.tensors.items()}
    rest = ("pooler.query_tokens", "classifier.weight", "classifier.bias")
    tensors |= dict.fromkeys(rest, np.ones((3,), np.float32))
    record, variables, notes = model_of_tensors(tensors, case.config, Hints())
    jax.tree.map(np.testing.assert_array_equal, variables, loaded(NAME)[1])
    assert dict(record.fields) == FIELDS
    assert any("an attentive pooler and its classifier" in note for note in notes)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"hidden_size": 48}, "hidden_size = 48, but the tensors have 40"),
        ({"tubelet_size": 1}, "tubelet_size = 1, but the tensors have 2"),
        ({"num_attention_heads": 3}, "3 heads do not divide the width 40"),
    ],
)
def test_a_configuration_of_another_model_is_one_sentence(change, sentence):
    case = stored(NAME)
    with pytest.raises(UserError, match=sentence) as caught:
        model_of_tensors(case.tensors, {**case.config, **change}, Hints())
    assert "\n" not in str(caught.value)


def test_what_transformers_has_not_is_not_written(tmp_path):
    record, variables = loaded(NAME)
    head = {"kernel": np.zeros((40, 5), np.float32), "bias": np.zeros(5, np.float32)}
    variables = {"params": {**variables["params"], "head": head}}
    fields = {**record.fields, "num_classes": 5}
    record = record.__class__(**{**record.__dict__, "fields": fields})
    with pytest.raises(UserError, match="no head on the mean of the tokens; keep the run folder"):
        write_pretrained(tmp_path / "no", "huggingface", record, variables)


@pytest.mark.parametrize("name", list_models("V-JEPA2-*"))
def test_a_published_size_has_its_name(name):
    known = {key: value for key, value in model_fields(name).items() if key in FIELDS}
    # A size in pixels makes no other model.
    assert model_name(known, "VJEPA2") == name.removesuffix("-384")
