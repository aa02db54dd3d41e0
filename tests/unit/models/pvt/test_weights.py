"""PVTs of transformers and of the authors: other sizes, fields, and transformers' written back.

That every stage has the library's numbers is in `tests/unit/weights/test_pyramids.py`.
"""

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.stages import TOLERANCE, largest_error
from tests.support.stored import GOLDEN, loaded, stored, write_files
from vit_jax.errors import UserError
from vit_jax.models.registry import model_fields
from vit_jax.weights.convert import model_name, read_pretrained, write_pretrained
from vit_jax.weights.formats import Hints

SIZES = {
    "num_classes": 5,
    "image_size": 64,
    "patch_sizes": (4, 2, 2, 2),
    "widths": (4, 8, 8, 8),
    "depths": (1, 2, 1, 1),
    "heads": (1, 2, 2, 2),
    "mlp_ratios": (3, 2, 2, 1),
    "reductions": (4, 4, 2, 1),
    "pool": "cls",
    "qkv_bias": True,
    "activation": "gelu",
    "pos_resize": "torch-bilinear",
}


def test_another_size_has_tables_resized_in_the_authors_way():
    record, variables = loaded("pvt_original")
    model, golden = record.create_model(), stored("pvt_original")
    # One side longer and one shorter.
    assert golden.others["images"].shape[1:3] == (96, 32)
    assert largest_error(model, variables, golden.others) <= TOLERANCE


@pytest.mark.slow
def test_another_way_to_resize_positions_is_noticed():
    record, variables = loaded("pvt_original")
    wrong = record.create_model().clone(pos_resize="bilinear")  # which antialiases
    assert largest_error(wrong, variables, stored("pvt_original").others) > 2 * TOLERANCE


def test_the_mean_of_the_last_map_is_that_of_a_reference_without_class_token():
    record, variables = loaded("pvt_original")
    params = jax.tree.map(lambda leaf: leaf, variables["params"])
    del params["stages_3"]["cls_token"]
    params["stages_3"]["pos_embed"] = params["stages_3"]["pos_embed"][:, 1:]
    model = record.create_model().clone(pool="mean")
    logits = jax.jit(model.apply)({"params": params}, stored("pvt_original").answers["images"])
    with np.load(GOLDEN / "pvt_original.npz") as file:
        expected = file["mean/logits"]
    assert np.abs(logits - expected).max() <= TOLERANCE * max(1.0, np.abs(expected).max())


def test_the_model_is_told_by_names_shapes_and_configuration():
    record, _ = loaded("pvt_hf")
    expected = {**SIZES, "in_channels": 3, "norm_eps": 1e-3, "embed_norm_eps": 1e-3}
    assert (record.name, dict(record.fields)) == ("PVT", expected)
    assert record.class_names == ("ant", "bee", "cat", "dog", "eel")
    assert (record.preprocessing.size, record.preprocessing.resize) == ((64, 64), "squash")
    record, _ = loaded("pvt_original")
    expected = {**SIZES, "in_channels": 3, "norm_eps": 1e-6, "embed_norm_eps": 1e-5}
    assert dict(record.fields) == expected
    assert record.preprocessing.crop == 224 / 256


@pytest.mark.parametrize("name", ["PVT-Tiny", "PVT-Small", "PVT-Medium", "PVT-Large"])
def test_a_published_size_has_its_name_whatever_the_epsilons(name):
    assert model_name({**model_fields(name), "embed_norm_eps": 1e-6}, "PVT") == name
    assert model_name({**model_fields(name), "depths": (1, 1, 1, 1)}, "PVT") == "PVT"


def test_written_for_transformers_the_tensors_are_its_own_bit_for_bit(tmp_path):
    record, variables = loaded("pvt_hf")
    folder = write_pretrained(tmp_path / "ours", "huggingface", record, variables)
    written, expected = load_file(folder / "model.safetensors"), stored("pvt_hf").tensors
    assert written.keys() == expected.keys()
    for name, array in written.items():
        assert array.tobytes() == np.ascontiguousarray(expected[name]).tobytes(), name
    again, same = read_pretrained(folder)
    assert again.fields == record.fields and again.class_names == record.class_names
    for one, other in zip(jax.tree.leaves(same), jax.tree.leaves(variables), strict=True):
        assert one.tobytes() == np.asarray(other).tobytes()


def test_what_transformers_cannot_say_is_refused(tmp_path):
    record, variables = loaded("pvt_original")
    sentence = "transformers does not support embed_norm_eps = 1e-05 of a PVT, only 1e-06"
    with pytest.raises(UserError, match=sentence):
        write_pretrained(tmp_path / "ours", "huggingface", record, variables)


def test_names_without_the_models_own_in_front_are_read_as_well(tmp_path):
    case = stored("pvt_hf")
    bare = {name.removeprefix("pvt."): array for name, array in case.tensors.items()}
    bare = {name: array for name, array in bare.items() if not name.startswith("classifier")}
    write_files(tmp_path / "bare", bare, case.config)
    record, variables = read_pretrained(tmp_path / "bare")
    assert record.fields["num_classes"] == 0 and "head" not in variables["params"]


def test_heads_that_nobody_says_are_asked_for(tmp_path):
    case = stored("pvt_original")
    write_files(tmp_path, case.tensors)
    with pytest.raises(UserError, match=r"widths of its stages are \[4, 8, 8, 8\].*--heads=NUMBER"):
        read_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"\[3\] heads do not divide the widths"):
        read_pretrained(tmp_path, Hints(heads=3))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"sequence_reduction_ratios": [8, 4, 2, 1]}, r"have \[4, 4, 2, 1\]"),
        ({"strides": [4, 2, 2, 1]}, "strides = .*different models"),
        ({"depths": "four"}, "depths = 'four' should be a list of whole numbers above 0"),
        (
            {"num_attention_heads": []},
            r"num_attention_heads = .* should be a list of whole numbers",
        ),
        ({"model_type": "pvt_v2"}, "model_type = 'pvt_v2' is not PVT"),
        ({"image_size": 128}, "32 x 32 patches of 4 x 4, but the position table has 256 rows"),
    ],
)
def test_a_configuration_of_another_model_is_refused(changed, sentence, tmp_path):
    case = stored("pvt_hf")
    write_files(tmp_path, case.tensors, {**case.config, **changed})
    with pytest.raises(UserError, match=sentence):
        read_pretrained(tmp_path)
