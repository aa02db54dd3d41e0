"""V-JEPA 2's encoder: its rotary positions by hand, and clips that do not fit.

Every block is compared with another library's in `test_weights`.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.architectures import TINY
from vit_jax.models.inputs import abstract_variables
from vit_jax.models.vjepa2.module import VJEPA2
from vit_jax.models.vjepa2.rotary import rotate_clips


def test_channels_turn_by_time_row_and_column_at_frequencies_laid_out_in_halves():
    """Heads of 14 channels: 4 for each axis, with the frequencies 1 and 1/100, and 2 left."""
    x = np.random.default_rng(0).normal(size=(1, 3 * 2 * 5, 1, 14)).astype(np.float32)
    found = np.asarray(rotate_clips(x, (2, 5))).reshape(3, 2, 5, 14)
    x = x.reshape(3, 2, 5, 14)
    step, row, column = place = (2, 1, 3)
    for axis, position in enumerate(place):
        a, b, c, d = (float(v) for v in x[step, row, column, 4 * axis : 4 * axis + 4])
        fast, slow = position * 1.0, position * 0.01
        expected = [
            a * math.cos(fast) - b * math.sin(fast),
            b * math.cos(slow) + a * math.sin(slow),
            c * math.cos(fast) - d * math.sin(fast),
            d * math.cos(slow) + c * math.sin(slow),
        ]
        np.testing.assert_allclose(
            found[step, row, column, 4 * axis : 4 * axis + 4], expected, atol=1e-6
        )
    np.testing.assert_array_equal(found[..., 12:], x[..., 12:])
    np.testing.assert_array_equal(found[0, 0, 0], x[0, 0, 0])


def test_bfloat16_is_turned_in_float32():
    x = jnp.ones((1, 64, 1, 6), jnp.bfloat16)
    found = rotate_clips(x, (1, 1))  # of 64 steps
    assert found.dtype == jnp.bfloat16
    expected = math.cos(63) - math.sin(63)
    np.testing.assert_allclose(float(found[0, 63, 0, 0]), expected, atol=4e-3)


def test_parameters_are_those_of_clips_of_any_length_and_size():
    shapes = [
        abstract_variables(TINY["VJEPA2"], jax.ShapeDtypeStruct(shape, jnp.float32))
        for shape in ((1, 4, 16, 16, 3), (1, 12, 8, 20, 3))
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"num_frames": 5}, "5 frames .* tubelets of 2; .* are 4 and 6"),
        ({"image_size": 18}, "18 x 18 pixels cannot be cut"),
        ({"heads": 3}, "width=16 is not a multiple of heads, 3"),
        ({"heads": 4}, "are 4 channels a head, .* at least 6; use at most 2 heads"),
    ],
)
def test_fields_that_do_not_fit_are_one_sentence(fields, sentence):
    with pytest.raises(ValueError, match=f"VJEPA2: .*{sentence}") as caught:
        TINY["VJEPA2"].clone(**fields)
    assert "\n" not in str(caught.value)


def test_tokens_that_are_no_whole_frames_are_refused():
    with pytest.raises(ValueError, match="7 tokens are no whole number of grids of 2 x 2"):
        rotate_clips(jnp.zeros((1, 7, 1, 6)), (2, 2))


def test_the_class_alone_has_the_sizes_of_the_large_one():
    assert (VJEPA2().width, VJEPA2().depth, VJEPA2().hidden_width) == (1024, 24, 4096)
