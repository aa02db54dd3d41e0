"""Tokenizers of repositories on the hub, without a network."""

import numpy as np
import pytest

from tests.folders import GOLDENS
from vit_jax.data.text import clip_tokenizer
from vit_jax.errors import UserError
from vit_jax.weights.remote.tokenizer import fetch_tokenizer

MERGES = GOLDENS / "data" / "text" / "merges.txt.gz"


@pytest.mark.parametrize("name", ["hf://someone/clip", "hf://someone/clip/tokenizer.json", "path"])
def test_a_file_put_by_hand_serves_a_name_of_the_hub(name, tmp_path, monkeypatch):
    monkeypatch.setenv("VIT_JAX_CACHE", str(tmp_path))
    clip, folder = clip_tokenizer(MERGES, length=9), tmp_path / "hf" / "someone" / "clip"
    (clip.save(folder) / "text.json").unlink()
    found = fetch_tokenizer(folder if name == "path" else name, length=9)
    np.testing.assert_array_equal(found.encode(["a cat"]), clip.encode(["a cat"]))


def test_a_name_that_is_none_is_one_sentence():
    with pytest.raises(UserError, match="is not a name on the Hugging Face hub"):
        fetch_tokenizer("hf://someone")
