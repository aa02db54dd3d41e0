"""numpy's archives, as numpy wrote them, and damaged or hostile ones."""

import io
import struct
import zipfile

import ml_dtypes
import numpy as np
import pytest

from tests.support.hostile import MEGABYTE, broken_copies, equal, outcome
from vit_jax.errors import UserError
from vit_jax.weights.io.npz_file import read_npz, write_npz

ARRAYS = {
    "embedding/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "Transformer/encoderblock_0/LayerNorm_0/scale": np.ones(3, np.float16),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "scalar": np.float32(3).reshape(()),
    "empty": np.zeros((0, 3), np.float32),
    "whole": np.arange(3, dtype=np.int64),
    "names": np.array(["tench", "goldfish"]),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_numpy_wrote_comes_back_under_names_with_slashes(tmp_path, save):
    save(tmp_path / "a.npz", **ARRAYS)
    assert equal(read_npz(tmp_path / "a.npz"), ARRAYS)


def test_what_is_written_comes_back(tmp_path):
    write_npz(tmp_path / "folder" / "a.npz", ARRAYS)
    assert equal(read_npz(tmp_path / "folder" / "a.npz"), ARRAYS)
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["a.npz"]
    with pytest.raises(UserError, match="a.npz/b.npz cannot be written .*; choose another folder"):
        write_npz(tmp_path / "folder" / "a.npz" / "b.npz", ARRAYS)


def test_other_byte_orders_come_back_as_the_machine_computes(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.arange(3, dtype=">f4"))
    assert equal(read_npz(tmp_path / "a.npz"), {"a": np.arange(3, dtype=np.float32)})


def test_bfloat16_which_numpy_stores_as_raw_bytes_is_bfloat16_again(tmp_path):
    array = np.array([1.5, -2, 1e30], ml_dtypes.bfloat16)
    np.savez(tmp_path / "a.npz", a=array)
    assert equal(read_npz(tmp_path / "a.npz"), {"a": array})


def test_all_zero_weights_that_compress_to_nothing_are_read(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", head=np.zeros((768, 21843), np.float32)[:, :10000])
    assert read_npz(tmp_path / "a.npz")["head"].shape == (768, 10000)


def test_objects_are_refused_by_name(tmp_path):
    np.savez(tmp_path / "a.npz", good=np.ones(2), **{"opt/state": np.array([{}], object)})
    with pytest.raises(UserError, match=r"'opt/state' has Python objects"):
        read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize("dtype", ["V3", "V0", [("a", "f4")]])
def test_dtypes_that_no_weights_have_are_refused(tmp_path, dtype):
    np.savez(tmp_path / "a.npz", odd=np.zeros(2, dtype))
    with pytest.raises(UserError, match=r"'odd' has the dtype"):
        read_npz(tmp_path / "a.npz")


def write(path, header: str | bytes, content=bytes(16), version=2, compress=False):
    header = header.encode() if isinstance(header, str) else header
    member = b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<I", len(header)) + header + content
    method = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("weight.npy", member)
    return path


def header(shape, descr="<f4"):
    return f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}\n"


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((5,), r"'weight' declares the shape \(5,\) of float32, 20 bytes, but the file has 16"),
        ((3,), r"12 bytes, but the file has 16"),
        ((10**12,), r"4000000000000 bytes, but the file has 16"),
        ((2**62, 2**62), r"impossible shape"),
        ((0, 2**70), r"impossible shape"),
        ((-4,), r"\(-4,\), which no tensor can have"),
        ((1,) * 40, r"which no tensor can have"),
        ((True, 4), r"which no tensor can have"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_with_both_numbers(tmp_path, shape, message):
    path = write(tmp_path / "a.npz", header(shape))
    with pytest.raises(UserError, match=message):
        read_npz(path)
    assert outcome(read_npz, path) is None


@pytest.mark.parametrize(
    "text", ["-" * 9000, "(" * 9000, "[" * 9000, "{1:" * 3000, "9" * 9000, "", "{}", "\x00", "'a'"]
)
@pytest.mark.parametrize("version", [1, 2, 3, 9])
def test_headers_that_are_none_are_one_sentence(tmp_path, text, version):
    with pytest.raises(UserError, match=r"a.npz cannot be read, it is damaged"):
        read_npz(write(tmp_path / "a.npz", text, version=version))


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path):
    shape = (2**26,)
    path = write(tmp_path / "bomb.npz", header(shape), bytes(2**28), compress=True)
    assert path.stat().st_size < 2 * MEGABYTE
    with pytest.raises(UserError, match=r"its tensors would take 2684\d+ bytes in memory"):
        read_npz(path)
    assert outcome(read_npz, path) is None


@pytest.mark.parametrize("second", ["a.npy", "a"])
def test_a_name_that_comes_twice_is_refused(tmp_path, second):
    file = io.BytesIO()
    np.save(file, np.ones(2))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", file.getvalue())
        if second == "a.npy":
            with pytest.warns(UserWarning, match="Duplicate"):
                archive.writestr(second, file.getvalue())
        else:
            archive.writestr(second, file.getvalue())
    with pytest.raises(UserError, match=r"'a(.npy)?' twice"):
        read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_file_broken_anywhere_is_refused_or_read_right(tmp_path, save):
    save(tmp_path / "a.npz", **ARRAYS)
    results = [outcome(read_npz, copy) for copy in broken_copies(tmp_path / "a.npz", tmp_path)]
    assert all(result is None or equal(result, ARRAYS) for result in results)
    assert sum(result is None for result in results) > len(results) / 2
