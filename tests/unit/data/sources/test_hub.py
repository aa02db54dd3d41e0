"""Datasets of the hub and Parquet files without the library that reads them, and wrong names.

What is read with it is in tests/parity/test_hub.py.
"""

import sys

import pytest

from vit_jax.data import open_source
from vit_jax.errors import UserError


@pytest.mark.parametrize(
    ("dataset", "sentence"),
    [
        ("hf:", "'hf:' has no path; use hf:PATH"),
        ("hf:a/b/c", "hf:a/b/c is no name on the hub; use hf:OWNER/NAME"),
        ("hf:owner/name", "hf:owner/name needs the library datasets; install it with pip install"),
        ("parquet:nowhere", "parquet:nowhere: there is no file or folder nowhere"),
        ("parquet:.", "there are no Parquet files in the folder"),
        ("huggingface:owner/name", "did you mean 'hf:owner/name'"),
    ],
)
def test_what_cannot_be_opened_is_one_sentence(dataset, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    with pytest.raises(UserError) as error:
        open_source(dataset, "train")
    assert sentence in str(error.value)
