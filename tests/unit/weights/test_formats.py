"""What formats share: telling sizes from shapes, and asking for what nobody says."""

import numpy as np
import pytest

from vit_jax.errors import UserError
from vit_jax.weights.formats import (
    Hints,
    Origin,
    all_zero,
    axes_of,
    choose_origin,
    configured_number,
    configured_size,
    count_blocks,
    need_heads,
    position_grid,
    side_or_pair,
)

PATTERN = r"blocks\.(\d+)\.w"
ORIGINS = {name: Origin({}, {}, "a test") for name in ("deit", "mae")}


def blocks(*numbers):
    return {f"blocks.{i}.w": np.zeros(1) for i in numbers}


def test_blocks_are_counted_by_their_numbers():
    assert count_blocks(blocks(0, 1, 2, 10, 3, 4, 5, 6, 7, 8, 9), PATTERN) == 11
    assert count_blocks({"head": np.zeros(1)}, PATTERN) == 0


def test_a_gap_in_the_numbers_is_a_part_of_a_model():
    with pytest.raises(UserError, match="up to number 3 but not number 1.*part of a model"):
        count_blocks(blocks(0, 2, 3), PATTERN)


@pytest.mark.parametrize(
    ("rows", "choices", "size", "expected"),
    [
        (197, (1, 0), None, (1, (224, 224))),
        (196, (1, 0), None, (0, (224, 224))),
        (198, (2, 0), None, (2, (224, 224))),
        (196, (0,), (112, 448), (0, (112, 448))),  # 7 x 28
        (197, (1, 0), (448, 112), (1, (448, 112))),  # 28 x 7
        (1, (0,), None, (0, (16, 16))),
    ],
)
def test_the_grid_of_a_position_table(rows, choices, size, expected):
    assert position_grid(rows, choices, (16, 16), Hints(image_size=size)) == expected


def test_oblong_patches_have_a_grid_too():
    assert position_grid(16, (0,), (8, 4), Hints()) == (0, (32, 16))
    assert position_grid(12, (0,), (8, 4), Hints(image_size=(16, 24))) == (0, (16, 24))


def test_a_table_that_is_no_square_is_asked_for():
    with pytest.raises(UserError, match="190 rows.*--file-size=HEIGHTxWIDTH"):
        position_grid(190, (1, 0), (16, 16), Hints())


@pytest.mark.parametrize("rows", [0, 1])
def test_a_table_without_patches_is_no_table(rows):
    with pytest.raises(UserError, match=f"{rows} rows"):
        position_grid(rows, (1,), (16, 16), Hints())


def test_a_size_that_does_not_fit_the_table_is_refused_with_all_numbers():
    with pytest.raises(UserError, match="384 x 384 pixels has 24 x 24 patches of 16 x 16.*197"):
        position_grid(197, (1, 0), (16, 16), Hints(image_size=(384, 384)))


def test_heads_are_asked_for_where_nobody_says_them():
    with pytest.raises(UserError, match=r"width 384; use --heads=NUMBER; .* have 6"):
        need_heads(Hints(), None, 384)
    with pytest.raises(UserError, match=r"--heads=NUMBER$"):
        need_heads(Hints(), None, 100)


def test_heads_that_the_person_and_the_configuration_say_must_be_equal():
    assert need_heads(Hints(heads=6), None, 384) == 6
    assert need_heads(Hints(), 12, 384) == 12
    assert need_heads(Hints(heads=6), 6, 384) == 6
    with pytest.raises(
        UserError, match="--heads=6 contradicts the config.json beside the file, 12"
    ):
        need_heads(Hints(heads=6), 12, 384)


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(UserError, match="7 heads do not divide the width 384"):
        need_heads(Hints(heads=7), None, 384)


def test_an_origin_is_asked_for_where_several_fit():
    with pytest.raises(UserError, match="--origin=deit or --origin=mae"):
        choose_origin(Hints(), ORIGINS)
    assert choose_origin(Hints(origin="mae"), ORIGINS)[0] == "mae"
    assert choose_origin(Hints(), ORIGINS, "deit")[0] == "deit"
    assert choose_origin(Hints(), {"mae": ORIGINS["mae"]})[0] == "mae"


def test_an_origin_that_does_not_fit_is_refused_with_those_that_do():
    with pytest.raises(
        UserError, match="--origin=dino does not fit this file; use .*deit or --origin=mae"
    ):
        choose_origin(Hints(origin="dino"), ORIGINS)


def test_axes_are_checked_before_a_shape_is_believed():
    tensors = {"w": np.zeros((4, 3)), "empty": np.zeros((4, 0))}
    assert axes_of(tensors, "w", "out, in") == (4, 3)
    for name in ("w", "empty"):
        with pytest.raises(UserError, match=rf"{name} has shape .* the axes \("):
            axes_of(tensors, name, "out, in" if name == "empty" else "out, in, height, width")
    with pytest.raises(UserError, match="has no v: it is incomplete"):
        axes_of(tensors, "v", "out, in")


@pytest.mark.parametrize("value", [0, -1, "12", 12.0, True, [12]])
def test_a_configured_number_is_a_whole_one_above_zero(value):
    assert configured_number({"heads": 12}, "heads") == 12
    assert configured_number({}, "heads") is None
    with pytest.raises(UserError, match="config.json: heads = .* whole number above 0"):
        configured_number({"heads": value}, "heads")


@pytest.mark.parametrize("value", [0, "224", 2.5, [224], [224, 0], [224, "a"], {"height": 1}])
def test_a_configured_size_is_one_number_or_two(value):
    assert configured_size({"image_size": 224}, "image_size") == (224, 224)
    assert configured_size({"image_size": [224, 112]}, "image_size") == (224, 112)
    assert configured_size({}, "image_size") is None
    with pytest.raises(UserError, match="config.json: image_size = "):
        configured_size({"image_size": value}, "image_size")


def test_small_things():
    assert side_or_pair((4, 4)) == 4
    assert side_or_pair((4, 2)) == (4, 2)
    assert all_zero(np.zeros((2, 3)))
    assert not all_zero(np.array([0, 1e-30]))
