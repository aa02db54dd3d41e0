"""Google's files give the numbers of the reference, whichever way their names go.

The golden files are made by `tests/goldens/weights/make_google.py`, which says where the
references come from.
"""

import ml_dtypes
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from tests.folders import GOLDENS
from tests.support.shapes import run
from tests.support.stored import assert_vit_fields
from vit_jax.errors import UserError
from vit_jax.models.inputs import abstract_variables
from vit_jax.models.vit.weights import google
from vit_jax.weights.convert import make_record, read_pretrained
from vit_jax.weights.formats import Hints
from vit_jax.weights.mapping import read_params, write_tensors

GOLDEN = sorted((GOLDENS / "weights").glob("google_*.npz"))
CASES = [path.stem.removeprefix("google_") for path in GOLDEN]
SIZE = {"sincos": Hints(image_size=(16, 16))}  # no position table tells it

# Fields by which the files of the cases differ, from what the script that made them says.
FIELDS = {
    "classic": {"pool": "cls", "class_token": True, "pos_on_cls": True},
    "pre_logits": {"pool": "cls", "representation_size": 12},
    "gap": {"pool": "mean", "class_token": False, "pos_on_cls": False},
    "linen": {"pool": "cls", "class_token": True, "pos_on_cls": True},
    "class_token": {"pool": "cls", "class_token": True, "pos_on_cls": False},
    "map": {"pool": "map", "class_token": False, "num_classes": 5},
    "stacked": {"pool": "mean", "class_token": False},
    "sincos": {"pool": "mean", "positions": "sincos2d_big_vision", "representation_size": 16},
    "siglip": {"pool": "map", "num_classes": 0},
}
ORIGINS = {
    **dict.fromkeys(("classic", "pre_logits", "gap", "linen"), "google"),
    **dict.fromkeys(("class_token", "map", "stacked", "sincos"), "big_vision"),
    "siglip": "siglip",
}


def tensors_of(case):
    """What the file of a case holds, in float32."""
    with np.load(GOLDEN[CASES.index(case)]) as arrays:
        names = [name for name in arrays if name.startswith("file/")]
        return {name.removeprefix("file/"): arrays[name].astype(np.float32) for name in names}


def renamed(tensors, *pairs):
    """The same tensors with parts of their names replaced."""
    result = {}
    for name, array in tensors.items():
        for old, new in pairs:
            name = name.replace(old, new)
        result[name] = array
    return result


@pytest.fixture
def read(tmp_path):
    """Writes tensors as Google does, and reads them."""

    def write_and_read(tensors, hints=Hints()):  # noqa: B008
        path = tmp_path / "weights.npz"
        np.savez(path, **tensors)
        return read_pretrained(path, hints)

    return write_and_read


def test_there_is_a_case_for_every_layout():
    assert set(CASES) == set(FIELDS) == set(ORIGINS)


@pytest.mark.parametrize(
    ("case", "where"),
    [
        *((case, "") for case in CASES),
        # One of each kind of table: with a row for the class token, without, and computed.
        *((case, "other/") for case in ("classic", "gap", "sincos", "siglip")),
        *(
            pytest.param(case, "other/", marks=pytest.mark.slow)
            for case in CASES
            if case not in ("classic", "gap", "sincos", "siglip")
        ),
    ],
)
def test_every_block_and_the_answer_are_those_of_the_reference(case, where, read):
    record, variables = read(tensors_of(case), SIZE.get(case, Hints()))
    model = record.create_model()
    golden = np.load(GOLDEN[CASES.index(case)])
    images = golden[f"{where}images"].astype(np.float32)
    answer, state = run(model, variables, images, mutable="intermediates")
    found = {f"block_{i}": state["intermediates"][f"blocks_{i}"]["out"][0] for i in range(2)}
    for name, ours in {**found, "answer": answer}.items():
        theirs = golden[f"{where}{name}"]
        np.testing.assert_allclose(
            ours, theirs, rtol=0, atol=2e-5 * max(1, np.abs(theirs).max()), err_msg=name
        )


def describe(tensors, hints=Hints()):  # noqa: B008
    return google.describe(google.normalize_names(tensors), None, hints)


@pytest.mark.parametrize("case", CASES)
def test_the_model_is_told_by_names_and_shapes(case):
    description = describe(tensors_of(case), SIZE.get(case, Hints()))
    facts = {"norm_eps": 1e-6, "activation": "gelu_tanh", "pos_resize": "corner-bilinear"}
    assert_vit_fields(description, mlp_width=24, **facts, **FIELDS[case])
    assert description.origin == ORIGINS[case]


@pytest.mark.parametrize("case", CASES)
def test_pixels_go_from_minus_one_to_one(case):
    description = describe(tensors_of(case), SIZE.get(case, Hints()))
    preprocessing = make_record(description).preprocessing
    pixels = np.array([0, 255], np.uint8).reshape(2, 1, 1).repeat(3, axis=2)
    np.testing.assert_array_equal(preprocessing.normalize(pixels)[:, 0, 0], [-1, 1])
    assert preprocessing.size == (16, 16)
    assert preprocessing.interpolation == "bilinear"
    assert preprocessing.crop == (0.875 if ORIGINS[case] == "big_vision" else 1.0)


def test_old_and_new_numbers_and_stacked_blocks_are_the_same_parameters(read):
    classic = tensors_of("classic")
    linen = renamed(
        classic,
        ("LayerNorm_2", "LayerNorm_1"),
        ("Attention_1", "Attention_0"),
        ("MlpBlock_3", "MlpBlock_0"),
    )
    first = "Transformer/encoderblock_0/"
    stacked = {name: array for name, array in linen.items() if "encoderblock" not in name} | {
        name.replace("_0/", "/", 1): np.stack([array, linen[name.replace("_0/", "_1/", 1)]])
        for name, array in linen.items()
        if name.startswith(first)
    }
    prefixed = {f"opt/target/{name}": array for name, array in stacked.items()}
    expected = flatten_dict(read(classic)[1], sep="/")
    for other in (linen, stacked, prefixed):
        found = flatten_dict(read(other)[1], sep="/")
        assert list(found) == list(expected)
        for path, array in expected.items():
            np.testing.assert_array_equal(found[path], array, err_msg=path)


def test_what_is_read_is_written_again_bit_for_bit(read):
    tensors = tensors_of("linen")
    record, _ = read(tensors)
    shapes = abstract_variables(record.create_model())["params"]
    params = read_params(google.ROWS, tensors, shapes).params
    written = write_tensors(google.ROWS, params)
    assert set(written) == set(tensors)
    for name, array in tensors.items():
        np.testing.assert_array_equal(written[name], array, err_msg=name)


def test_positions_of_big_vision_before_2022_are_read(read):
    table = "Transformer/posembed_input/pos_embedding"
    old = renamed(tensors_of("gap"), (table, "Transformer/pos_embedding"))
    record, variables = read(old)
    np.testing.assert_array_equal(variables["params"]["pos_embed"], tensors_of("gap")[table])
    assert record.origin == "weights of big_vision"


def test_bfloat16_comes_out_of_two_bytes(read):
    exact = tensors_of("map")
    halved = {
        name: array.astype(ml_dtypes.bfloat16).view("V2") for name, array in exact.items()
    }  # as NumPy reads the bfloat16 of an .npz file
    _, variables = read(halved)
    kernel = exact["params/embedding/kernel"].astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(variables["params"]["patch_embed"]["kernel"], kernel)


# ------------------------------------------------------------------------- what has to be asked


def test_fixed_positions_do_not_tell_the_image_size():
    with pytest.raises(UserError, match="no position table.*--file-size=HEIGHTxWIDTH"):
        describe(tensors_of("sincos"))


def test_a_table_that_is_no_square_needs_the_image_size():
    tensors = tensors_of("gap")
    table = "Transformer/posembed_input/pos_embedding"
    tensors[table] = np.concatenate([tensors[table], tensors[table][:, :2]], axis=1)  # 18 rows
    with pytest.raises(UserError, match="18 rows.*--file-size"):
        describe(tensors)
    assert describe(tensors, Hints(image_size=(12, 24))).fields["image_size"] == (12, 24)


def test_heads_are_in_the_file_and_cannot_be_said_otherwise():
    with pytest.raises(UserError, match="--heads=4 contradicts the file, which has 2 heads"):
        describe(tensors_of("classic"), Hints(heads=4))


def test_an_origin_that_the_layout_excludes_is_refused():
    with pytest.raises(
        UserError, match="--origin=siglip does not fit this file; use --origin=google"
    ):
        describe(tensors_of("classic"), Hints(origin="siglip"))
    assert describe(tensors_of("stacked"), Hints(origin="siglip")).origin == "siglip"


# --------------------------------------------------------------------------------- what is told


def test_a_head_of_zeros_is_told():
    tensors = tensors_of("classic")
    assert describe(tensors).notes == ()
    tensors["head/kernel"] = np.zeros((16, 21843), np.float32)
    tensors["head/bias"] = np.zeros(21843, np.float32)
    [note] = describe(tensors).notes
    assert "head of 21843 outputs is all zeros" in note


def test_a_missing_tensor_is_named(read):
    tensors = tensors_of("classic")
    del tensors["Transformer/encoderblock_1/MlpBlock_3/Dense_0/kernel"]
    with pytest.raises(
        UserError, match="has no Transformer/encoderblock_1/MlpBlock_3/Dense_0/kernel"
    ):
        read(tensors)


def test_a_missing_block_is_named(read):
    with pytest.raises(UserError, match="up to number 2 but not number 1"):
        read(renamed(tensors_of("classic"), ("encoderblock_1", "encoderblock_2")))


def test_a_wrong_shape_is_named_with_both(read):
    tensors = tensors_of("classic")
    tensors["head/bias"] = np.ones(6, np.float32)
    with pytest.raises(UserError, match=r"head/bias has shape \(6,\) and should have \(5,\)"):
        read(tensors)


def test_what_is_left_over_is_named(read):
    tensors = {**tensors_of("classic"), "Transformer/registers": np.ones(3, np.float32)}
    with pytest.raises(UserError, match="no parameter for Transformer/registers"):
        read(tensors)


# ------------------------------------------------------------------------------- hostile and odd


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("embedding/kernel", (48, 16)),  # big_vision's NaFlex, a dense layer
        ("embedding/kernel", (0, 4, 3, 16)),
        ("head/kernel", (5,)),
        ("Transformer/posembed_input/pos_embedding", (17,)),
        ("Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel", (16, 16)),
        ("Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel", ()),
    ],
)
def test_a_shape_without_the_axes_it_should_have_is_refused(name, shape):
    tensors = {**tensors_of("classic"), name: np.ones(shape, np.float32)}
    with pytest.raises(UserError, match=f"{name} has shape .* and should have the axes"):
        describe(tensors)


def test_a_billion_empty_blocks_are_refused():
    tensors = tensors_of("stacked")
    for name in tensors:
        if "encoderblock/" in name:
            tensors[name] = np.empty((10**9, 0), np.float32)
    with pytest.raises(UserError, match="no attention or no MLP"):
        describe(tensors)


def test_a_block_of_an_absurd_number_is_refused():
    absurd = "1" + "0" * 5000  # more digits than Python makes a number of
    tensors = renamed(tensors_of("classic"), ("encoderblock_1", f"encoderblock_{absurd}"))
    with pytest.raises(UserError, match="up to number 1000.* but not number 1"):
        describe(tensors)


def test_a_name_with_and_without_prefix_is_refused():
    tensors = {**tensors_of("stacked"), "head/bias": np.ones(5, np.float32)}
    with pytest.raises(UserError, match="has head/bias twice"):
        describe(tensors)
