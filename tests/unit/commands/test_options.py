"""Options that several commands share."""

import pytest

from vit_jax.commands.options import parse_fields
from vit_jax.errors import UserError


def test_fields_of_a_model_are_names_with_values():
    assert parse_fields(None) == {}
    texts = ["tome-r=8", "keep_ratio=(1.0, 0.5)", "dtype=bfloat16", "keep_fused=false"]
    values = {"tome_r": 8, "keep_ratio": (1.0, 0.5), "dtype": "bfloat16", "keep_fused": False}
    assert parse_fields(texts) == values
    for text in ("tome_r", "=8"):
        with pytest.raises(UserError, match=f"--field={text} is invalid; use NAME=VALUE"):
            parse_fields([text])
