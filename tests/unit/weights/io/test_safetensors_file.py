"""The safetensors format: bytes laid out by hand after its description, and damaged ones."""

import json
import os

import ml_dtypes
import numpy as np
import pytest
import safetensors

from tests.support.hostile import broken_copies, equal, outcome
from vit_jax.errors import UserError
from vit_jax.weights.io.safetensors_file import DTYPES, read_safetensors, write_safetensors


def write(path, header, content: bytes):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content)
    return path


def entry(dtype="F32", shape=(4,), start=0, stop=16):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}


def test_a_file_laid_out_by_hand_is_read(tmp_path):
    header = {
        "__metadata__": {"format": "pt"},
        "head.weight": entry("F32", (2, 2), 0, 16),
        "scale": entry("BF16", (), 16, 18),
    }
    content = np.float32([1, 2, 3, 4]).tobytes() + b"\xc0\x3f"  # 0x3fc0: 1.5 in bfloat16
    tensors = read_safetensors(write(tmp_path / "a.safetensors", header, content))
    expected = {
        "head.weight": np.float32([[1, 2], [3, 4]]),
        "scale": np.array(1.5, ml_dtypes.bfloat16),
    }
    assert equal(tensors, expected)
    assert list(tensors) == ["head.weight", "scale"]


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_goes_out_and_comes_back(tmp_path, name):
    tensors = {"a": np.arange(4).astype(DTYPES[name]), "none": np.zeros((0, 2), DTYPES[name])}
    write_safetensors(tmp_path / "a.safetensors", tensors, {})
    assert equal(read_safetensors(tmp_path / "a.safetensors"), tensors)


def test_any_memory_order_is_written_as_it_reads(tmp_path):
    table = np.arange(6, dtype=">f4").reshape(2, 3)
    tensors = {"turned": table.T, "apart": table[:, ::2], "number": table[0, 1].reshape(())}
    write_safetensors(tmp_path / "new" / "a.safetensors", tensors, {"format": "pt"})
    with safetensors.safe_open(tmp_path / "new" / "a.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}
        for name, tensor in tensors.items():
            np.testing.assert_array_equal(file.get_tensor(name), tensor.astype("=f4"), strict=True)


def test_a_dtype_that_the_format_lacks_is_named(tmp_path):
    with pytest.raises(UserError, match=r"'names' has the dtype <U1"):
        write_safetensors(tmp_path / "a.safetensors", {"names": np.array(["a"])}, {})


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    write_safetensors(path, {"a": np.ones(2)}, {})
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError, match=r"cannot be written .*make room on the disk"):
        write_safetensors(path, {"a": np.zeros(2)}, {})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/a.safetensors cannot be written"):
        write_safetensors(tmp_path / "file" / "a.safetensors", {"a": np.ones(2)}, {})


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"w": entry(shape=(5,))}, r"'w' declares the shape \(5,\) of F32, 20 bytes, but has 16"),
        ({"w": entry(shape=(10**12,))}, r"4000000000000 bytes, but has 16"),
        ({"w": entry(shape=(2**62, 8))}, r"impossible shape"),
        ({"w": entry(shape=(0, 2**70), stop=0)}, r"impossible shape"),
        ({"w": entry(shape=(-4,))}, r"which no tensor can have"),
        ({"w": entry(shape=(4.0,))}, r"which no tensor can have"),
        ({"w": entry(shape=("4",))}, r"which no tensor can have"),
        ({"w": entry(shape=(8,), stop=32)}, r"'w' ends at byte 32 of the 16"),
        ({"w": entry(start=-16, stop=0)}, r"from -16 to 0"),
        ({"w": entry(shape=(2,), stop=8)}, r"its tensors end after"),
        ({"w": entry(), "v": entry()}, r"damaged"),  # one over the other
        ({"w": entry(shape=(2,), start=8, stop=16)}, r"damaged"),  # a hole before
        ({"w": entry(dtype="F4")}, r"'w' has the dtype 'F4'; use one of F64"),
        ({"w": {"dtype": "F32"}}, r"'w' is declared as .* without dtype, shape and data_offsets"),
        ({"w": 3}, r"'w' is declared as 3"),
        ([], r"not an object"),
        (b'{"w": ' + b'{"a":' * 100000, r"damaged"),
        (b'{"w": {"dtype": "F32", "dtype": "F16"}}', r"'dtype' twice"),
        (b'{"w": 1, "w": 2}', r"'w' twice"),
        (b"\xff", r"damaged"),
        (b'{"w": ' + b"9" * 10000 + b"}", r"damaged"),
    ],
)
def test_headers_that_do_not_fit_are_refused_with_the_key_and_both_numbers(
    tmp_path, header, message
):
    path = write(tmp_path / "a.safetensors", header, bytes(16))
    with pytest.raises(UserError, match=message):
        read_safetensors(path)
    assert outcome(read_safetensors, path) is None


def test_a_header_longer_than_the_file_is_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes((2**39).to_bytes(8, "little") + b'{"a": 1}')
    with pytest.raises(UserError, match=r"has 16 bytes and declares a header of 549755813888"):
        read_safetensors(path)


def test_a_file_broken_anywhere_is_refused_or_read(tmp_path):
    # The format has no checksum: a bit turned in a number shows in nothing.
    tensors = {"a": np.arange(4, dtype=np.float32), "b": np.ones((2, 2), np.float16)}
    path = tmp_path / "a.safetensors"
    write_safetensors(path, tensors, {"format": "pt"})
    results = [outcome(read_safetensors, copy) for copy in broken_copies(path, tmp_path)]
    assert sum(result is None for result in results) > len(results) / 2
    size = path.stat().st_size
    assert size < 1000
    for length in range(size):
        (tmp_path / "cut").write_bytes(path.read_bytes()[:length])
        assert outcome(read_safetensors, tmp_path / "cut") is None
