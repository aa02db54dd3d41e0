"""Tables of names and layouts: each layout by hand, and what does not fit a model."""

import ml_dtypes
import numpy as np
import pytest

from vit_jax.errors import UserError
from vit_jax.weights.mapping import (
    CONV,
    LINEAR,
    LINEN_QKV_BIAS,
    LINEN_QKV_KERNEL,
    OUT_KERNEL,
    QKV_BIAS,
    QKV_KERNEL,
    SAME,
    SPLIT_QKV_BIAS,
    SPLIT_QKV_KERNEL,
    Row,
    apart,
    expected_shapes,
    joined,
    layer_norm,
    linear,
    read_params,
    summarize,
    write_tensors,
)

ROWS = (
    Row("blocks_{i}/w", "layer.{i}.weight", LINEAR),
    Row("blocks_{i}/w", "old.{i}.weight", SAME),
    Row("token", "token", SAME),
)


def numbers(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


# ------------------------------------------------------------------------------------- layouts


def test_a_linear_layer_is_transposed():
    theirs = numbers(2, 3)  # (out, in)
    ours = LINEAR.read([theirs], (3, 2))
    assert [ours[i, o] for o in range(2) for i in range(3)] == [0, 1, 2, 3, 4, 5]


def test_a_convolution_goes_from_out_in_height_width_to_height_width_in_out():
    theirs = numbers(5, 3, 2, 4)
    ours = CONV.read([theirs], (2, 4, 3, 5))
    assert ours.shape == (2, 4, 3, 5)
    assert ours[1, 3, 2, 4] == theirs[4, 2, 1, 3]
    assert ours[0, 2, 1, 3] == theirs[3, 1, 0, 2]


def test_fused_qkv_has_q_k_v_below_each_other_and_heads_inside_each():
    width, heads, head_dim = 5, 3, 2
    theirs = numbers(3 * heads * head_dim, width)
    ours = QKV_KERNEL.read([theirs], (width, 3, heads, head_dim))
    for of, head, place, x in ((0, 0, 0, 0), (1, 2, 1, 4), (2, 1, 0, 3)):
        row = of * heads * head_dim + head * head_dim + place
        assert ours[x, of, head, place] == theirs[row, x]
    bias = QKV_BIAS.read([numbers(18)], (3, heads, head_dim))
    assert bias[1, 2, 1] == 1 * 6 + 2 * 2 + 1


def test_split_qkv_is_fused_qkv_cut_in_three():
    theirs = numbers(18, 5)
    parts = np.split(theirs, 3)
    fused = QKV_KERNEL.read([theirs], (5, 3, 3, 2))
    np.testing.assert_array_equal(SPLIT_QKV_KERNEL.read(parts, (5, 3, 3, 2)), fused)
    bias = numbers(18)
    np.testing.assert_array_equal(
        SPLIT_QKV_BIAS.read(np.split(bias, 3), (3, 3, 2)), QKV_BIAS.read([bias], (3, 3, 2))
    )


def test_the_output_projection_reads_head_by_head():
    theirs = numbers(5, 6)  # (out, heads * head_dim)
    ours = OUT_KERNEL.read([theirs], (3, 2, 5))
    assert ours[2, 1, 4] == theirs[4, 2 * 2 + 1]


def test_linen_has_q_k_v_apart_and_heads_on_an_axis():
    q, k, v = (numbers(5, 3, 2) + 100 * i for i in range(3))
    ours = LINEN_QKV_KERNEL.read([q, k, v], (5, 3, 3, 2))
    assert ours[4, 1, 2, 0] == k[4, 2, 0]
    assert ours[0, 2, 1, 1] == v[0, 1, 1]


LAYOUTS = {
    "SAME": (SAME, (1, 4, 6)),
    "LINEAR": (LINEAR, (4, 6)),
    "CONV": (CONV, (2, 4, 3, 5)),
    "QKV_KERNEL": (QKV_KERNEL, (6, 3, 3, 2)),
    "QKV_BIAS": (QKV_BIAS, (3, 3, 2)),
    "OUT_KERNEL": (OUT_KERNEL, (3, 2, 5)),
    "SPLIT_QKV_KERNEL": (SPLIT_QKV_KERNEL, (6, 3, 3, 2)),
    "SPLIT_QKV_BIAS": (SPLIT_QKV_BIAS, (3, 3, 2)),
    "LINEN_QKV_KERNEL": (LINEN_QKV_KERNEL, (6, 3, 3, 2)),
    "LINEN_QKV_BIAS": (LINEN_QKV_BIAS, (3, 3, 2)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_a_layout_writes_it_reads_bit_for_bit_in_the_shapes_it_expects(name):
    layout, shape = LAYOUTS[name]
    ours = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    theirs = layout.write(ours)
    names = tuple("abc"[: len(theirs)])
    assert [x.shape for x in theirs] == expected_shapes(Row("w", names, layout), shape)
    assert layout.read(theirs, shape).tobytes() == ours.tobytes()


# ------------------------------------------------------------------------------------------ rows


def test_a_row_names_the_tensors_of_a_block_and_of_no_other_path():
    row = Row("blocks_{i}/attn/qkv/kernel", ("l.{i}.q", "l.{i}.k"), SAME)
    assert row.names("blocks_11/attn/qkv/kernel") == ["l.11.q", "l.11.k"]
    assert row.names("blocks_1/attn/qkv/bias") is None
    assert row.names("other/blocks_1/attn/qkv/kernel") is None
    assert Row("cls_token", "cls", SAME).names("cls_token") == ["cls"]


def test_stages_and_their_blocks_have_a_number_each():
    row = Row("stages_{i}/blocks_{j}/norm/scale", "layers.{i}.blocks.{j}.norm.weight", SAME)
    assert row.names("stages_2/blocks_10/norm/scale") == ["layers.2.blocks.10.norm.weight"]
    assert row.names("stages_2/norm/scale") is None


def test_running_statistics_are_read_and_written_beside_the_parameters():
    rows = (Row("norm/scale", "bn.weight", SAME), Row("batch_stats/norm/mean", "bn.mean", SAME))
    variables = {
        "params": {"norm": {"scale": numbers(2)}},
        "batch_stats": {"norm": {"mean": numbers(2) + 7}},
    }
    written = write_tensors(rows, joined(variables))
    assert written.keys() == {"bn.weight", "bn.mean"}
    assert list(written["bn.mean"]) == [7, 8]
    reading = read_params(rows, written, joined(variables))
    again = apart(reading.params, variables)
    assert again["params"].keys() == {"norm"}
    assert list(again["batch_stats"]["norm"]["mean"]) == [7, 8]


def test_a_layer_is_two_rows_and_a_norm_too():
    assert [(row.ours, row.theirs) for row in linear("a", "b")] == [
        ("a/kernel", "b.weight"),
        ("a/bias", "b.bias"),
    ]
    assert [(row.ours, row.theirs) for row in layer_norm("a", "b")] == [
        ("a/scale", "b.weight"),
        ("a/bias", "b.bias"),
    ]


def test_the_first_row_whose_names_a_file_holds_is_read_and_the_first_of_all_written():
    shapes = {"blocks_0": {"w": np.zeros((3, 2))}}
    newer = read_params(ROWS, {"layer.0.weight": numbers(2, 3)}, shapes)
    older = read_params(ROWS, {"old.0.weight": numbers(2, 3).T}, shapes)
    np.testing.assert_array_equal(newer.params["blocks_0"]["w"], older.params["blocks_0"]["w"])
    [(name, array)] = write_tensors(ROWS, older.params).items()
    assert name == "layer.0.weight"
    assert array.flags["C_CONTIGUOUS"]
    np.testing.assert_array_equal(array, numbers(2, 3))


def test_what_is_missing_and_what_is_left_over_are_both_told():
    shapes = {"blocks_0": {"w": np.zeros((3, 2))}, "token": np.zeros(2)}
    reading = read_params(ROWS, {"layer.0.weight": numbers(2, 3), "more": numbers(1)}, shapes)
    assert reading.missing == ("token",)
    assert reading.left_over == ("more",)


def test_every_wrong_shape_is_told_with_the_right_one():
    shapes = {"blocks_0": {"w": np.zeros((3, 2))}, "token": np.zeros(2)}
    tensors = {"layer.0.weight": numbers(3, 2), "token": numbers(4)}
    expected = (
        r"layer\.0\.weight has shape \(3, 2\) and should have \(2, 3\), "
        r"token has shape \(4,\) and should have \(2,\)"
    )
    with pytest.raises(UserError, match=expected):
        read_params(ROWS, tensors, shapes)


@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64", "V2"])
def test_numbers_that_are_no_floats_are_refused_by_name(dtype):
    tensors = {"token": np.zeros(2, dtype)}
    with pytest.raises(UserError, match="token has .* floating-point"):
        read_params(ROWS, tensors, {"token": np.zeros(2)})


@pytest.mark.parametrize("dtype", ["float16", "float64", ml_dtypes.bfloat16])
def test_floats_of_any_precision_become_float32(dtype):
    tensors = {"token": np.array([0.5, -2], dtype)}
    token = read_params(ROWS, tensors, {"token": np.zeros(2)}).params["token"]
    assert token.dtype == np.float32
    assert token.tolist() == [0.5, -2]


def test_parameters_that_a_library_has_no_name_for_are_listed():
    with pytest.raises(
        UserError, match=r"map_head/probe cannot be written: that library has no names"
    ):
        write_tensors(ROWS, {"token": numbers(2), "map_head": {"probe": numbers(2)}})


def test_of_many_names_five_are_shown_and_the_others_counted():
    assert summarize(list("abc")) == "a, b, c"
    assert summarize(list("abcdefgh")) == "a, b, c, d, e and 3 more"
