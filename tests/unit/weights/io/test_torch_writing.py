"""Files of torch that are written here, without torch; the parity tests open them with it."""

import pickle

import numpy as np
import pytest

from tests.support.hostile import equal
from vit_jax.errors import UserError
from vit_jax.weights.io.files import read_tensors
from vit_jax.weights.io.torch_writing import _whole, write_torch

TENSORS = {
    "visual.conv1.weight": np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2),
    "visual.transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "logit_scale": np.float32(2.5).reshape(()),
    "numbers": np.zeros((0, 3), np.float32),
}


def test_what_is_written_comes_back(tmp_path):
    write_torch(tmp_path / "folder" / "model.pt", TENSORS)
    assert equal(read_tensors(tmp_path / "folder"), TENSORS)
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["model.pt"]


def test_numbers_of_large_tensors():
    for number in (0, 2**31 - 1, 2**31, 2**40):
        assert pickle.loads(pickle.PROTO + b"\x02" + _whole(number) + pickle.STOP) == number


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="model.pt cannot be written"):
        write_torch(tmp_path / "file" / "model.pt", TENSORS)
