"""Clips that do not fit the tubelets of a model, for every architecture that has them."""

import jax.numpy as jnp
import pytest

from tests.support.architectures import TINY
from vit_jax.models.inputs import trace_init


@pytest.mark.parametrize("name", ["TimeSformer", "VJEPA2"])
@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        ((2, 16, 16, 3), r"clips are \(batch, frames, height, width, channels\), got .*\[None\]"),
        ((2, 3, 16, 16, 3), "clips of 3 frames cannot be cut into tubelets of 2; .* 2 and 4"),
        ((2, 4, 16, 18, 3), "16 x 18 pixels cannot be cut"),
    ],
)
def test_clips_that_do_not_fit_are_one_sentence(name, shape, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        trace_init(TINY[name], jnp.zeros(shape))
    assert "\n" not in str(caught.value)
