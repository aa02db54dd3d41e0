"""The sentence that refuses, and the numbers in it."""

from pathlib import Path

import pytest

from vit_jax.errors import UserError
from vit_jax.weights.io.safety import (
    byte_count,
    check_names,
    check_total,
    parse_json_object,
    refuse_damage,
    refuse_duplicates,
    show,
)

FILE = Path("a.npz")


def test_what_a_parser_raises_becomes_a_sentence_of_bounded_length():
    refusal = pytest.raises(UserError, match=r"^a.npz cannot be read, it is damaged")
    with refusal as refused, refuse_damage(FILE):
        raise ValueError("x" * 10_000)
    assert len(str(refused.value)) < 400


def test_a_refusal_and_a_fault_of_our_own_pass_unchanged():
    with pytest.raises(UserError, match=r"^told already$"), refuse_damage(FILE):
        raise UserError("told already")
    with pytest.raises(AttributeError), refuse_damage(FILE):
        raise AttributeError("a fault")


def test_bytes_are_the_product_of_sides_and_item():
    assert byte_count(FILE, "w", (3, 4), 2) == 24
    assert byte_count(FILE, "w", (), 4) == 4
    assert byte_count(FILE, "w", (0, 5), 4) == 0


def test_a_file_may_grow_by_a_part_of_its_size_and_a_little(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(bytes(1000))
    check_total(path, 64 * 2**20 + 4000)
    with pytest.raises(UserError, match=r"has 1000 bytes, .* 67112865 bytes in memory"):
        check_total(path, 64 * 2**20 + 4001)


def test_the_name_that_comes_twice_is_told():
    refuse_duplicates(FILE, ["a", "b"])
    with pytest.raises(UserError, match=r"has 'b' twice"):
        refuse_duplicates(FILE, ["a", "b", "c", "b"])


def test_usual_names_and_shapes_are_shown_whole_and_megabytes_are_not():
    name = "vit.encoder.layer.11.attention.attention.query.weight"
    assert show(name) == repr(name)
    assert show((768, 12, 64)) == "(768, 12, 64)"
    assert len(show("x" * 10**6)) < 300
    assert len(show((10**6,) * 10**6)) < 300


def test_json_of_other_encodings_is_refused():
    assert parse_json_object(FILE, '{"é": 1}'.encode()) == {"é": 1}
    with pytest.raises(UserError, match=r"damaged"):
        parse_json_object(FILE, '{"é": 1}'.encode("latin-1"))


def test_a_value_of_many_levels_is_cut_to_the_length_of_a_message():
    value = "x" * 100
    for _ in range(8):
        value = (value,) * 8
    assert len(show(value)) <= 300


def test_a_shape_of_a_million_sides_is_refused_by_its_length_alone():
    class Sides(tuple):
        def __iter__(self):
            raise AssertionError("walked")

    with pytest.raises(UserError, match=r"which no tensor can have"):
        byte_count(FILE, "w", Sides((1,) * 33), 4)


def test_more_tensors_and_longer_names_than_any_model_has_are_refused():
    check_names(FILE, [f"blocks.{i}.weight" for i in range(20_000)])
    with pytest.raises(UserError, match=r"a.npz has 20001 tensors.*at most 20000"):
        check_names(FILE, range(20_001))
    with pytest.raises(UserError, match=r"has 1001 letters") as refused:
        check_names(FILE, ["x" * 1001])
    assert len(str(refused.value)) < 500
